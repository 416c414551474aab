//! Dropping a reactor: it must not free memory that the kernel still writes to.

use std::mem;

use fieldstone_block::Nanos;

use super::{DRAIN_LIMIT_MS, Holder, Queued, Reactor};
use crate::clock;

/// How long one wait of the drain lasts, so that the drain notices its limit.
const STEP: Nanos = Nanos::from_ms(100);

impl Drop for Reactor {
    fn drop(&mut self) {
        // Operations that the kernel has not seen are simply dropped.
        self.backlog.clear();
        self.flights.retain(|_, flight| flight.holder == Holder::Kernel);
        let keys: Vec<usize> = self.flights.iter().map(|(key, _)| key).collect();
        for key in keys {
            let name = super::start::user_data(key, self.flights[key].generation);
            self.enqueue(Queued::Cancel(name));
        }
        let deadline = clock::now().plus(Nanos::from_ms(DRAIN_LIMIT_MS));
        while !self.flights.is_empty() {
            let borrowed = self.flights.iter().any(|(_, flight)| flight.op.borrows_memory());
            if clock::now() > deadline && !borrowed {
                break;
            }
            self.refill();
            // After an error only waiting remains, or leaking after the limit.
            if let Err(error) = self.enter_draining(STEP) {
                tracing::error!(%error, "io_uring_enter failed while draining");
            }
            self.discard_results();
        }
        if !self.flights.is_empty() {
            tracing::error!(
                operations = self.flights.len(),
                "the kernel did not return operations in time; their memory is leaked"
            );
            mem::forget(mem::take(&mut self.flights));
        }
    }
}
