"""What a cluster is asked for, what it did, and what follows from that; no scheduler library is imported here."""
