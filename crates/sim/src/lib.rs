//! The seeded world: virtual clock, network, disks, faults and checkers
