"""Virtual vehicles under attack: benign recordings turned into traffic that nobody recorded, with attacks put in.

In: attack-free `Messages`, an `InjectionConfig` and a seed. Out: labelled `Messages` of vehicles with other ids, habits
and payloads, in the order in which a real bus would send them, and a pool of attacked windows made of them. Read
`injection.py` first, then `vehicle.py` (how a vehicle is varied) and `attacks.py` (what attackers send).
"""
