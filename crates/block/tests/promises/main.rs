//! The promises of each layer beyond the contract: when it merges, keeps and waits, and when it
//! does not.

#[cfg(test)]
mod align;
#[cfg(test)]
mod cache;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod manual;
#[cfg(test)]
mod readahead;
#[cfg(test)]
mod scheduler;
#[cfg(test)]
mod stack;
#[cfg(test)]
mod write_cache;
