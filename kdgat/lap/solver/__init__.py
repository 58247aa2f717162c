"""Where the exact solver was before it became `kdgat.assignment`; goes with the next release."""
