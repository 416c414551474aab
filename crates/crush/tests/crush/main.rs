//! Placement: maps and their formats, the mappers, pools, OSDMaps, and the balancer. One program,
//! because each program of tests is compiled with all that it uses.

mod balance;
mod batch;
mod binary;
mod builder;
mod golden;
mod osdmap;
mod osdmap_chain;
mod osdmaptool;
mod plain;
mod pool;
mod tester;
mod text;
