"""What tests of several folders share: waiting, the command line in this process, small runs. No test is in here."""
