//! What the driver does when something went wrong: blame, reset, and the way back.

use fieldstone_accel::{Job, JobCompletion, JobError};

use super::FpgaDevice;
use crate::bounds::MAX_RESETS;
use crate::card::Shared;
use crate::descriptor::Completion;
use crate::flight::{Flight, Purpose};
use crate::maps::Use;
use crate::regs::Status;

impl FpgaDevice {
    /// Learns from an error: what the device does not take is not offered again.
    pub(super) fn blame(&mut self, slot: usize, completion: &Completion) {
        let Some(Flight { purpose: Purpose::Job { job, uses, .. }, .. }) = &self.flights[slot]
        else {
            return;
        };
        let mut shared = self.card.shared();
        let Shared { maps, card, .. } = &mut *shared;
        match (completion.status, job, uses) {
            (Ok(Status::BadImage), _, Some(uses)) => maps.refused(uses.epoch, card),
            (Ok(Status::StaleEpoch), _, Some(_)) => maps.forget_loaded(),
            (Ok(Status::BadProgram), Job::Code { map, .. }, _) => {
                self.programs.borrow_mut().refused(map);
            }
            (Ok(Status::NotLoaded), ..) if maps.module().is_some() => {
                maps.swap_ended(self.card.partition().module);
            }
            _ => {}
        }
    }

    /// Ends all jobs as device errors, and asks the device to let go of their memory.
    pub(super) fn recover(&mut self, reason: &str) {
        tracing::warn!("{}: {reason}; the queue set is reset", self.name);
        self.fail_flights(reason);
        self.watch.news();
        self.resets = (self.resets.0 + 1, self.resets.1 + 1);
        if self.resets.0 > MAX_RESETS {
            self.set.lose();
            return self.give_up();
        }
        self.set.reset();
    }

    pub(super) fn fail_flights(&mut self, reason: &str) {
        self.batch = None;
        for slot in 0..self.flights.len() {
            let Some(flight) = self.flights[slot].take() else { continue };
            self.ruins.0.extend(flight.host);
            self.ruins.1.extend(flight.card);
            match flight.purpose {
                Purpose::Swap(_) => self.swap_failed = true,
                Purpose::Job { queue, id, job, uses, .. } => {
                    self.let_go(&job, uses);
                    let result = Err(JobError::Device(reason.to_owned()));
                    self.finished.entry(queue).or_default().push(JobCompletion { job: id, result });
                }
            }
        }
        self.programs.borrow_mut().queue_set_reset();
        self.card.shared().maps.queue_set_reset(self.set.number());
    }

    /// A job does not use its map or program any more.
    pub(super) fn let_go(&self, job: &Job, uses: Option<Use>) {
        if let Some(uses) = uses {
            self.card.shared().maps.release(uses);
        }
        if let Job::Code { map, .. } = job {
            self.programs.borrow_mut().release(map);
        }
    }

    /// After a reset: the device has let go, and the set begins anew.
    pub(super) fn revive(&mut self) {
        let mut shared = self.card.shared();
        self.ruins.0.drain(..).for_each(|extent| shared.host.release(extent));
        self.ruins.1.drain(..).for_each(|extent| shared.card.release(extent));
        if std::mem::take(&mut self.swap_failed) {
            shared.maps.swap_ended(self.card.partition().module);
        }
        drop(shared);
        self.set.enable();
    }

    /// The device does not answer. Memory that it may still use is never used again.
    pub(super) fn give_up(&mut self) {
        if self.flights.iter().any(Option::is_some) {
            tracing::error!("{}: the device does not answer; it is given up", self.name);
        }
        self.fail_flights("the device does not answer");
        if std::mem::take(&mut self.swap_failed) {
            self.card.shared().maps.swap_ended(None);
        }
    }
}
