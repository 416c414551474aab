//! Permanent faults, the faults that stay. Each strikes once, when the scenario says so and the
//! fault model allows it. The world never heals them.

use fieldstone_proto::NodeIndex;

use super::{FaultEnd, World};
use crate::actor::Cast;
use crate::disk::{DiskFaults, FailedOps, NodeFileKind, Snapshot};
use crate::fault_model::Fault;
use crate::scenario::StayingPlan;
use crate::trace::Who;

const MS: u64 = 1_000_000;
/// The largest number of bits that damage flips.
const FLIPS_MAX: u64 = 12;
/// The fields of headers and records are in this many first bytes of a page.
const FIELDS_BYTES: usize = 64;
/// Size of a page of a file.
const PAGE_BYTES: usize = 4096;

/// A node's files at some time, for a stale copy.
pub(super) struct OldCopy {
    files: Snapshot,
    incarnation: u64,
}

impl<C: Cast> World<'_, C> {
    /// A fault that stays is due, and waits until the fault model allows it.
    pub(super) fn staying_is_due(&self) -> bool {
        self.staying.iter().any(|plan| self.is_due(plan.at_request))
    }

    fn is_due(&self, request: u32) -> bool {
        self.requests >= request || self.calm
    }

    /// Takes the copies that are due. Lets faults strike that are due and permitted.
    pub(super) fn strike_to_stay(&mut self) {
        for plan in std::mem::take(&mut self.staying) {
            let taken = self.old_copies.contains_key(&plan.node);
            if plan.fault == Fault::StaleCopy && !taken && self.is_due(plan.copy_at_request) {
                let host = &self.nodes[usize::from(plan.node.0)];
                let (files, incarnation) = (host.disk.snapshot(), host.incarnation);
                self.old_copies.insert(plan.node, OldCopy { files, incarnation });
                self.note(
                    Who::World,
                    "copied",
                    u64::from(plan.node.0),
                    format_args!("{}", plan.node),
                );
            }
            let struck = self.is_due(plan.at_request)
                && self.fault_model.allows_staying(plan.node)
                && self.nodes[usize::from(plan.node.0)].process.is_some();
            if struck {
                self.strike_for_good(plan);
            } else {
                self.staying.push(plan);
            }
        }
    }

    fn strike_for_good(&mut self, plan: StayingPlan) {
        let StayingPlan { node, fault, .. } = plan;
        *self.injected.entry(fault).or_default() += 1;
        self.fault_model.begins_to_stay(node);
        self.note(Who::Fault, fault.name(), u64::from(node.0), format_args!("{node}, to the end"));
        let mut restarts = self.permanent_rng.chance(500);
        match fault {
            Fault::DamageStays => self.damage(node),
            Fault::ErrorsStay => {
                let broken = Some(self.draw_broken());
                self.change_disk(node, DiskFaults { broken, ..DiskFaults::default() });
            }
            Fault::ReadOnlyStays => {
                let broken = Some(FailedOps::ReadOnly);
                self.change_disk(node, DiskFaults { broken, ..DiskFaults::default() });
            }
            Fault::FullStays => {
                self.change_disk(node, DiskFaults { full: true, ..DiskFaults::default() });
            }
            Fault::SlowStays => {
                let share = self.permanent_rng.pick(&SLOW_PER_CENT);
                let delay_ns = self.scenario.node_timeout_ms * MS / 100 * share;
                self.note(Who::Fault, "slow", delay_ns, format_args!("{share} % of the timeout"));
                self.nodes[usize::from(node.0)].permanent_faults.delay_ns = delay_ns;
            }
            Fault::SilenceStays => {
                restarts = false;
                self.nodes[usize::from(node.0)].permanent_faults.silent = true;
            }
            Fault::StaleCopy => return self.fall_back(node),
            _ => {}
        }
        if restarts {
            self.nodes[usize::from(node.0)].disk.kill();
            self.start_anew(node);
        }
    }

    fn draw_broken(&mut self) -> FailedOps {
        self.permanent_rng.pick(&[
            FailedOps::All,
            FailedOps::Reads,
            FailedOps::Writes,
            FailedOps::Syncs,
            FailedOps::File(NodeFileKind::Slots),
            FailedOps::File(NodeFileKind::Data),
            FailedOps::File(NodeFileKind::Volume),
            FailedOps::File(NodeFileKind::Journal),
        ])
    }

    fn change_disk(&mut self, node: NodeIndex, faults: DiskFaults) {
        self.note(Who::Fault, "disk", 0, format_args!("{node} {faults:?}"));
        self.nodes[usize::from(node.0)].disk.faults = faults;
    }

    /// Flips bits in one file, or in any files.
    fn damage(&mut self, node: NodeIndex) {
        let files = self.nodes[usize::from(node.0)].disk.files();
        if files.is_empty() {
            return;
        }
        self.nodes[usize::from(node.0)].flipped = true;
        let one = files[self.permanent_rng.index(files.len())];
        let anywhere = self.permanent_rng.chance(400);
        for _ in 0..self.permanent_rng.between(1, FLIPS_MAX) {
            let other = files[self.permanent_rng.index(files.len())];
            let file = if anywhere { other } else { one };
            let within_bytes = self.permanent_rng.pick(&[FIELDS_BYTES, PAGE_BYTES]);
            let at = self.nodes[usize::from(node.0)].disk.flip_bit(file, within_bytes);
            if let Some(at) = at {
                self.note(Who::Fault, "flipped", at, format_args!("{node} {file:?} byte {at}"));
            }
        }
    }

    /// The node goes on with its files of some time ago.
    fn fall_back(&mut self, node: NodeIndex) {
        let Some(OldCopy { files, incarnation }) = self.old_copies.remove(&node) else { return };
        self.start_anew(node);
        let host = &mut self.nodes[usize::from(node.0)];
        host.disk.restore(files);
        host.incarnation = incarnation;
    }

    fn start_anew(&mut self, node: NodeIndex) {
        let silent = self.permanent_rng.chance(300);
        self.stop_node(node, silent);
        let away_ns = self.permanent_rng.between(MS, 500 * MS);
        self.recover_after(node, away_ns, FaultEnd::Start);
    }
}

/// The duration of an operation of a slow disk, in per cent of `node_timeout_ms`.
const SLOW_PER_CENT: [u64; 5] = [5, 30, 90, 110, 500];
