//! Where the link of each OSD is: on the client's core, or on a branch.
//!
//! A link begins on the client's core. [`balance`] says when it moves. The choice
//! stays for later links to the same OSD.

use std::collections::BTreeMap;

use fieldstone_crush::OsdId;

use super::balance;
use super::branch::{ACKNOWLEDGED_STEP_BYTES, BranchId, CoreLoad, Errand, ErrandKind};
use crate::Nanos;
use crate::auth::wire::TicketBlob;

/// The link of an OSD.
pub(super) struct Place {
    /// `None` on the client's own core.
    pub(super) branch: Option<BranchId>,
    /// The number of the session on a branch.
    pub(super) session: u64,
    /// The ticket that the client showed.
    pub(super) shown: Option<TicketBlob>,
    pub(super) traffic: Traffic,
}

/// What went through a link since the last check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) requests: u64,
    pub(super) bytes: u64,
}

/// What a core did between its last two reports.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    last: Option<CoreLoad>,
    /// Nanoseconds of CPU time in a second; `None` before the second report.
    pub(super) per_second: Option<u64>,
    /// It answered the present question.
    pub(super) has_answered: bool,
}

impl Load {
    pub(super) fn report(&mut self, load: CoreLoad) {
        self.has_answered = true;
        if let Some(last) = self.last.replace(load) {
            let elapsed = load.at.since(last.at).0.max(1);
            let used = u128::from(load.used.since(last.used).0);
            let per_second = used * 1_000_000_000 / u128::from(elapsed);
            self.per_second = Some(u64::try_from(per_second).unwrap_or(u64::MAX));
        }
    }
}

/// The places of all links to OSDs, and what waits for the branches.
#[derive(Default)]
pub(super) struct Places {
    links: BTreeMap<OsdId, Place>,
    /// OSDs whose links belong on a branch.
    assigned: BTreeMap<OsdId, BranchId>,
    errands: Vec<Vec<Errand>>,
    /// Bytes of reports that the client has taken and not yet acknowledged, of each branch.
    taken_bytes: Vec<u64>,
    /// The client's core, then the branches.
    pub(super) loads: Vec<Load>,
    /// When the last question for loads was asked.
    pub(super) asked: Nanos,
    /// The time that the present traffic took.
    pub(super) period: Nanos,
    /// The estimated CPU time of the traffic since the question.
    pub(super) work_ns: u64,
    /// Links that have moved since the start.
    pub(super) moves: u64,
}

impl Places {
    pub(super) fn set_branches(&mut self, count: u16) {
        self.errands.resize_with(count.into(), Vec::new);
        self.taken_bytes.resize(count.into(), 0);
        self.loads.resize_with(usize::from(count) + 1, Load::default);
    }

    pub(super) fn has_branches(&self) -> bool {
        !self.errands.is_empty()
    }

    /// Where a new link to an OSD belongs.
    pub(super) fn branch_for(&self, osd: OsdId) -> Option<BranchId> {
        self.assigned.get(&osd).copied()
    }

    /// Later links to an OSD belong there.
    pub(super) fn assign(&mut self, osd: OsdId, branch: Option<BranchId>) {
        match branch {
            Some(branch) => drop(self.assigned.insert(osd, branch)),
            None => drop(self.assigned.remove(&osd)),
        }
    }

    pub(super) fn insert(&mut self, osd: OsdId, place: Place) {
        self.links.insert(osd, place);
    }

    pub(super) fn remove(&mut self, osd: OsdId) -> Option<Place> {
        self.links.remove(&osd)
    }

    /// Forgets all links. Gives those on branches.
    pub(super) fn clear(&mut self) -> Vec<(OsdId, BranchId)> {
        let links = std::mem::take(&mut self.links);
        links.into_iter().filter_map(|(osd, place)| Some((osd, place.branch?))).collect()
    }

    pub(super) fn get(&self, osd: OsdId) -> Option<&Place> {
        self.links.get(&osd)
    }

    /// True if this is the session of the present link to an OSD, on this branch.
    pub(super) fn is_current(&self, osd: OsdId, branch: BranchId, session: u64) -> bool {
        self.links
            .get(&osd)
            .is_some_and(|place| place.branch == Some(branch) && place.session == session)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (OsdId, &mut Place)> {
        self.links.iter_mut().map(|(&osd, place)| (osd, place))
    }

    /// The number of links on the client's core and on each branch.
    pub(super) fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.errands.len() + 1];
        for place in self.links.values() {
            counts[place.branch.map_or(0, |branch| usize::from(branch.0) + 1)] += 1;
        }
        counts
    }

    /// Counts a request with so much data, and gives the branch that has to send it.
    pub(super) fn count(&mut self, osd: OsdId, bytes: u64) -> Option<BranchId> {
        self.add(osd, Traffic { requests: 1, bytes })
    }

    /// Counts the data of an answer.
    pub(super) fn count_answer(&mut self, osd: OsdId, bytes: u64) {
        self.add(osd, Traffic { requests: 0, bytes });
    }

    fn add(&mut self, osd: OsdId, traffic: Traffic) -> Option<BranchId> {
        if !self.has_branches() {
            return None;
        }
        self.work_ns = self.work_ns.saturating_add(balance::cost_ns(traffic));
        let place = self.links.get_mut(&osd)?;
        place.traffic.requests += traffic.requests;
        place.traffic.bytes += traffic.bytes;
        place.branch
    }

    /// The client has taken a report of so many bytes. It acknowledges many of them at once.
    pub(super) fn taken(&mut self, branch: BranchId, bytes: u64) {
        let Some(taken) = self.taken_bytes.get_mut(usize::from(branch.0)) else { return };
        *taken = taken.saturating_add(bytes);
        if *taken >= ACKNOWLEDGED_STEP_BYTES {
            let taken = std::mem::take(taken);
            self.errand(branch, ErrandKind::Acknowledged(taken));
        }
    }

    pub(super) fn errand(&mut self, branch: BranchId, errand: ErrandKind) {
        if let Some(errands) = self.errands.get_mut(usize::from(branch.0)) {
            errands.push(Errand(errand));
        }
    }

    pub(super) fn errand_for_all(&mut self, errand: impl Fn() -> ErrandKind) {
        for errands in &mut self.errands {
            errands.push(Errand(errand()));
        }
    }

    pub(super) fn take_errands(&mut self, branch: BranchId) -> Vec<Errand> {
        self.errands.get_mut(usize::from(branch.0)).map(std::mem::take).unwrap_or_default()
    }
}
