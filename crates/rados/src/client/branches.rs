//! The client's side of its branches: errands to them, reports of them, and which links move.

use fieldstone_crush::OsdId;

use super::Client;
use super::balance::{self, CHECK_PERIOD, CHECK_WORK_NS, LinkTraffic};
use super::branch::{BranchId, CoreLoad, Errand, ErrandKind, Report, ReportKind};
use super::links::Peer;
use crate::Nanos;

impl Client {
    /// The client may use so many other cores. Call it before the client runs first.
    pub fn set_branches(&mut self, count: u16) {
        self.places.set_branches(count);
    }

    /// What a branch has to do, since the last call. The owner takes it once in a turn, at the end,
    /// and carries it to the branch. The order counts.
    #[must_use]
    pub fn take_errands(&mut self, branch: BranchId) -> Vec<Errand> {
        self.places.take_errands(branch)
    }

    /// A branch told something. It is handled in [`Client::run`].
    pub fn reported(&mut self, branch: BranchId, reports: Vec<Report>) {
        self.reports.extend(reports.into_iter().map(|report| (branch, report)));
    }

    /// The number of links to OSDs on the client's core and on each branch.
    #[must_use]
    pub fn link_counts(&self) -> Vec<usize> {
        self.places.counts()
    }

    /// How many links have moved to another core since the start.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.places.moves
    }

    /// Asks all cores for their loads, if a check is due: the owner gives the CPU time that the
    /// client's core has used so far with `used`. Costs nothing if no check is due.
    pub fn measure(&mut self, now: Nanos, used: impl FnOnce() -> Nanos) {
        let has_ended = self.has_ended();
        let places = &mut self.places;
        let is_due = now >= places.asked.plus(CHECK_PERIOD) && places.work_ns >= CHECK_WORK_NS;
        if !places.has_branches() || !is_due || has_ended {
            return;
        }
        for load in &mut places.loads {
            load.has_answered = false;
        }
        places.loads[0].report(CoreLoad { at: now, used: used() });
        places.errand_for_all(|| ErrandKind::Measure);
        places.work_ns = 0;
        // A core that does not answer ends no check; the next one begins in any case.
        let period = now.since(places.asked);
        places.asked = now;
        places.period = period;
    }

    /// Handles what branches told. True if there was anything.
    pub(super) fn hear_branches(&mut self, now: Nanos) -> bool {
        let mut did = false;
        while let Some((branch, Report { kind, bytes })) = self.reports.pop_front() {
            did = true;
            self.places.taken(branch, bytes);
            match kind {
                ReportKind::Link { osd, session, event } => {
                    if self.places.is_current(osd, branch, session) {
                        self.hear(Peer::Osd(osd), event, now);
                    }
                }
                ReportKind::Replied { osd, session, tid, reply } => {
                    if self.places.is_current(osd, branch, session) {
                        self.osd_replied(osd, tid, reply, now);
                    }
                }
                ReportKind::Load(load) => self.branch_load(branch, load, now),
            }
            // As with links: what one event causes comes before the next event.
            self.run_objecter(now);
        }
        did
    }

    /// A branch answered the question for its load. The last answer decides which links move.
    fn branch_load(&mut self, branch: BranchId, load: CoreLoad, now: Nanos) {
        let places = &mut self.places;
        let Some(core) = places.loads.get_mut(usize::from(branch.0) + 1) else { return };
        core.report(load);
        if !places.loads.iter().all(|load| load.has_answered) {
            return;
        }
        let busy: Option<Vec<u64>> = places.loads.iter().map(|load| load.per_second).collect();
        let period = places.period;
        let links: Vec<LinkTraffic> = places
            .iter_mut()
            .map(|(osd, place)| LinkTraffic {
                osd,
                core: place.branch.map_or(0, |branch| usize::from(branch.0) + 1),
                traffic: std::mem::take(&mut place.traffic),
            })
            .collect();
        let Some(busy) = busy else { return };
        for (osd, core) in balance::plan(&busy, &links, period) {
            let branch = core.checked_sub(1).map(|at| BranchId(u16::try_from(at).expect("few")));
            self.move_link(osd, branch, now);
        }
    }

    /// Moves the link to an OSD to a branch, or (`None`) to the client's core. If there is no link
    /// that is ready, the next one begins there. The client does so by itself when it is busy.
    pub fn move_link(&mut self, osd: OsdId, branch: Option<BranchId>, now: Nanos) {
        tracing::debug!("the connection to osd.{} belongs to {branch:?} now", osd.0);
        self.places.assign(osd, branch);
        if self.places.get(osd).is_some_and(|place| place.branch != branch) {
            self.places.moves += 1;
            self.objecter.move_session(osd, now);
            self.run_objecter(now);
        }
    }

    /// Closes all links on branches.
    pub(super) fn close_branches(&mut self) {
        for (osd, branch) in self.places.clear() {
            self.places.errand(branch, ErrandKind::Close(osd));
        }
        self.reports.clear();
    }
}
