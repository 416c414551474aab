//! What each layer promises beyond the contract: that it merges, keeps, waits, and does not.

#[cfg(test)]
mod align;
#[cfg(test)]
mod cache;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod manual;
#[cfg(test)]
mod scheduler;
#[cfg(test)]
mod stack;
