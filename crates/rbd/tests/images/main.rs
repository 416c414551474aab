//! Images in a model of a cluster.

mod again;
mod basics;
mod chaos;
mod clones;
mod faults;
mod late;
mod locks;
mod maps;
mod oracle;
mod requests;
mod sharing;
mod stale;
mod torture;
mod unsure;
mod world;
