"""Trees from files: SWC (`swc`), river lines (`rivers`), masks (`masks`), and folders of them with labels (`collection`)."""
