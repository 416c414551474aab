//! The log-structured volume: journal, segments, map, recovery, GC, rebuild, scrub. A state machine
