//! How the driver recovers from an error: find the cause, reset, start again.

use fieldstone_accel::{Job, JobCompletion, JobError};

use super::FpgaDevice;
use crate::bounds::MAX_RESETS;
use crate::card::Shared;
use crate::descriptor::Completion;
use crate::flight::{Flight, FlightKind};
use crate::maps::MapPin;
use crate::regs::Status;

impl FpgaDevice {
    /// Learns from an error: the driver no longer offers a map or program that the device refuses.
    pub(super) fn blame(&mut self, slot: usize, completion: &Completion) {
        let Some(Flight { kind: FlightKind::Job { job, pin, .. }, .. }) = &self.flights[slot]
        else {
            return;
        };
        let mut shared = self.card.shared();
        let Shared { maps, card, .. } = &mut *shared;
        match (completion.status, job, pin) {
            (Ok(Status::BadImage | Status::TooLong), _, Some(pin)) => {
                maps.refused(pin.epoch, card);
            }
            (Ok(Status::StaleEpoch), _, Some(_)) => maps.forget_loaded(),
            (Ok(Status::BadProgram | Status::TooLong), Job::Code { map, .. }, _) => {
                self.programs.borrow_mut().refused(map);
            }
            (Ok(Status::NotLoaded), ..) if maps.module().is_some() => {
                maps.swap_ended(self.card.partition().module);
            }
            _ => {}
        }
    }

    /// Ends all jobs as device errors, and resets the queue set, so that the device stops using
    /// their memory.
    pub(super) fn recover(&mut self, reason: &str) {
        self.resets.in_a_row += 1;
        self.resets.ever += 1;
        if self.resets.in_a_row > MAX_RESETS {
            return self.abandon(&format!("{reason}, after {MAX_RESETS} resets in a row"));
        }
        tracing::warn!("{}: {reason}; the queue set is reset", self.name);
        self.fail_flights(reason);
        self.watchdog.on_completion();
        self.set.reset();
    }

    pub(super) fn fail_flights(&mut self, reason: &str) {
        self.batch = None;
        for slot in 0..self.flights.len() {
            let Some(flight) = self.flights[slot].take() else { continue };
            self.abandoned_memory.host.extend(flight.claim.host);
            self.abandoned_memory.card.extend(flight.claim.card);
            match flight.kind {
                FlightKind::Swap(_) => self.swap_failed = true,
                FlightKind::Job { queue, id, job, pin, .. } => {
                    self.let_go(&job, pin);
                    let result = Err(JobError::Device(reason.to_owned()));
                    self.finished.entry(queue).or_default().push(JobCompletion { job: id, result });
                }
            }
        }
        self.programs.borrow_mut().queue_set_reset();
        let image = self.card.shared().maps.queue_set_reset(self.set.number());
        self.abandoned_memory.card.extend(image);
    }

    /// Releases the map or program of a job.
    pub(super) fn let_go(&self, job: &Job, pin: Option<MapPin>) {
        if let Some(pin) = pin {
            self.card.shared().maps.release(pin);
        }
        if let Job::Code { map, .. } = job {
            self.programs.borrow_mut().release(map);
        }
    }

    /// After a reset: the device has stopped using the memory, and the driver enables the set
    /// again.
    pub(super) fn revive(&mut self) {
        let module = self.card.partition().module;
        let mut shared = self.card.shared();
        std::mem::take(&mut self.abandoned_memory).release(&mut shared);
        if std::mem::take(&mut self.swap_failed) {
            shared.maps.swap_ended(module);
        }
        drop(shared);
        self.set.enable();
    }

    /// Gives the queue set up for good. Its jobs end, and the memory that the device may still use
    /// is never used again. Logs this once.
    pub(super) fn abandon(&mut self, why: &str) {
        if self.is_abandoned {
            return;
        }
        self.is_abandoned = true;
        self.set.lose();
        tracing::error!(
            "{}: given up, {why}; the CPU does its jobs from now on, until a restart",
            self.name
        );
        self.name.push_str(" (given up)");
        self.fail_flights(why);
        if std::mem::take(&mut self.swap_failed) {
            let module = self.card.partition().module;
            self.card.shared().maps.swap_ended(module);
        }
    }
}
