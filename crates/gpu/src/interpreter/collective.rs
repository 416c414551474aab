//! What lanes of a warp do together.
//!
//! A lane waits until all lanes that its mask names wait at the same instruction with the same
//! mask. A real card lets some other cases pass; here they are deadlocks, as no program needs them.

use super::execute::{Executed, State, Thread};
use super::fault::Cause;
use super::kernel::Kernel;
use super::operation::{Cell, Collective, Operation, Shuffle, Slot, Vote};
use super::shared::{LANES, Shared};

/// A warp none of whose lanes can execute.
pub(super) struct Warp<'a> {
    pub kernel: &'a Kernel,
    /// Index of the warp in its block.
    pub number: usize,
    pub lanes: &'a mut [Thread],
    pub shared: &'a mut Shared,
}

/// A fault, and the lane that has it.
type Resolved<T> = Result<T, (usize, Box<Cause>)>;

impl Warp<'_> {
    /// Does what all lanes of a mask wait for. Tells whether lanes can execute again.
    ///
    /// # Errors
    ///
    /// Lanes wait for what cannot come.
    pub fn resolve(&mut self) -> Resolved<bool> {
        let (mut progress, mut stuck) = (false, None);
        for lane in 0..self.lanes.len() {
            let Some(collective) = self.collective(lane) else { continue };
            let Some(slot) = mask_of(&collective) else { continue };
            let mask = self.get(lane, slot).map_err(|cause| (lane, cause))? as u32;
            match self.missing(lane, slot, mask).map_err(|text| deadlock(lane, text))? {
                None => {
                    self.perform(&collective, mask)?;
                    self.release(mask);
                    progress = true;
                }
                Some(text) => stuck = stuck.or(Some((lane, text))),
            }
        }
        if progress || self.tell_active() {
            return Ok(true);
        }
        stuck.map_or(Ok(false), |(lane, text)| Err(deadlock(lane, text)))
    }

    fn get(&self, lane: usize, slot: Slot) -> Executed<u64> {
        self.lanes[lane].get(self.kernel, slot)
    }

    /// What a lane waits for together with others.
    fn collective(&self, lane: usize) -> Option<Collective> {
        let thread = &self.lanes[lane];
        match self.kernel.code[thread.at].operation {
            Operation::Collective(collective) if thread.state == State::Gathered => {
                Some(collective)
            }
            _ => None,
        }
    }

    /// Why a lane must wait on: a lane of its mask that is not there yet.
    ///
    /// # Errors
    ///
    /// The mask is wrong.
    fn missing(&self, lane: usize, slot: Slot, mask: u32) -> Result<Option<String>, String> {
        if mask >> lane & 1 == 0 {
            return Err(format!("the mask {mask:#x} does not name the lane {lane} itself"));
        }
        let at = self.lanes[lane].at;
        let mut missing = None;
        for other in (0..LANES).filter(|other| mask >> other & 1 != 0) {
            let Some(thread) = self.lanes.get(other) else {
                return Err(format!("the mask {mask:#x} names lane {other}, which does not exist"));
            };
            let line = self.kernel.code[thread.at].line;
            if thread.state == State::Ended {
                return Err(format!("the mask {mask:#x} names lane {other}, which has ended"));
            }
            if thread.state != State::Gathered || thread.at != at {
                let text = format!("lane {other} of the mask {mask:#x} waits at line {line}");
                missing = missing.or(Some(text));
            } else if self.get(other, slot).is_ok_and(|found| found as u32 != mask) {
                return Err(format!("lane {other} waits here with another mask than {mask:#x}"));
            }
        }
        Ok(missing)
    }

    fn members(mask: u32) -> impl Iterator<Item = usize> + Clone {
        (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
    }

    fn perform(&mut self, collective: &Collective, mask: u32) -> Resolved<()> {
        match *collective {
            Collective::Sync { .. } => self.shared.sync_warp(self.number, mask),
            Collective::Shuffle { .. } => self.shuffle(collective, mask)?,
            Collective::Vote { how, d, a, negate, .. } => {
                let mut ballot = 0;
                for lane in Self::members(mask) {
                    let value = self.get(lane, a).map_err(|cause| (lane, cause))? != 0;
                    ballot |= u32::from(value != negate) << lane;
                }
                let told = match how {
                    Vote::Any => u32::from(ballot != 0),
                    Vote::All => u32::from(ballot == mask),
                    Vote::Ballot => ballot,
                };
                Self::members(mask).for_each(|lane| self.lanes[lane].set(d, told.into()));
            }
            Collective::ActiveMask { .. } => {}
        }
        Ok(())
    }

    fn shuffle(&mut self, collective: &Collective, members: u32) -> Resolved<()> {
        let Collective::Shuffle { how, d, in_range, abc: [a, b, c], .. } = *collective else {
            return Ok(());
        };
        let mut values = [0; LANES];
        for lane in Self::members(members) {
            values[lane] = self.get(lane, a).map_err(|cause| (lane, cause))?;
        }
        for lane in Self::members(members) {
            let operand = |slot| self.get(lane, slot).map_err(|cause| (lane, cause));
            let (from, inside) = source(how, lane as u32, operand(b)? as u32, operand(c)? as u32);
            // What a lane gives that takes no part is unknown.
            let known = members >> from & 1 != 0;
            let cell = Cell { bits: values[from as usize], defined: known };
            self.lanes[lane].cells[d as usize] = cell;
            if let Some(slot) = in_range {
                self.lanes[lane].set(slot, inside.into());
            }
        }
        Ok(())
    }

    /// Tells lanes that wait for no others which of them wait at one instruction.
    fn tell_active(&mut self) -> bool {
        let mut wait = (0..self.lanes.len()).filter_map(|lane| match self.collective(lane) {
            Some(Collective::ActiveMask { d }) => Some((self.lanes[lane].at, d)),
            _ => None,
        });
        let Some((at, d)) = wait.next() else { return false };
        let here = |thread: &Thread| thread.state == State::Gathered && thread.at == at;
        let lanes = self.lanes.iter().enumerate();
        let mask = lanes.map(|(lane, thread)| u32::from(here(thread)) << lane).sum::<u32>();
        Self::members(mask).for_each(|lane| self.lanes[lane].set(d, mask.into()));
        self.release(mask);
        true
    }

    /// Lets lanes go on.
    fn release(&mut self, mask: u32) {
        for lane in Self::members(mask) {
            self.lanes[lane].state = State::Ready;
            self.lanes[lane].at += 1;
        }
    }
}

fn deadlock(lane: usize, text: String) -> (usize, Box<Cause>) {
    (lane, Box::new(Cause::Deadlock(text)))
}

/// The cell of the mask of lanes. Some wait for no certain lanes.
fn mask_of(collective: &Collective) -> Option<Slot> {
    match *collective {
        Collective::Sync { mask }
        | Collective::Shuffle { mask, .. }
        | Collective::Vote { mask, .. } => Some(mask),
        Collective::ActiveMask { .. } => None,
    }
}

/// The lane whose value a lane gets, and whether it was in range. A lane that asks for one out of
/// range gets its own value. `c` holds the last lane of a segment in the low five bits, and from
/// bit 8 on a mask of the bits of a lane's number that name its segment.
fn source(how: Shuffle, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let first = lane & segment;
    let last = first | clamp & !segment;
    let (from, inside) = match how {
        Shuffle::Up => (lane.wrapping_sub(b), i64::from(lane) - i64::from(b) >= i64::from(last)),
        Shuffle::Down => (lane + b, lane + b <= last),
        Shuffle::Butterfly => (lane ^ b, lane ^ b <= last),
        Shuffle::Index => (first | b & !segment, first | b & !segment <= last),
    };
    if inside { (from, true) } else { (lane, false) }
}
