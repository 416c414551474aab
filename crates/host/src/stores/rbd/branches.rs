//! An image's client on several cores: the branches of the client, and the mail between the cores.
//!
//! The store opens a branch on every other core of the host. A branch without connections costs
//! nothing: it has no socket and no timer. The client decides by the cores' CPU time which
//! connections to OSDs move to a branch; see [`fieldstone_rados::client::branch`].
//!
//! The call `move` moves a connection by hand. A later check of the cores may move it again.
//!
//! All errands of a turn for a branch are one message, and so are all its reports of a turn.

use fieldstone_block::{Nanos, SettingError, Settings};
use fieldstone_crush::OsdId;
use fieldstone_rados::client::{Branch as Links, BranchId, Client, Errand, Report};
use fieldstone_uring::{Event, thread_usage};

use crate::branch::{Branch, BranchIo, BranchSpec};
use crate::ceph::Carrier;
use crate::message::Core;
use crate::store::{Call, Mail, StoreIo};

/// The calls of an image.
pub(super) const CALLS: &[Call] = &[Call {
    name: "move",
    options: &["osd", "core"],
    about: "Moves the connection to an OSD to a core of the server.",
}];

/// What the core of a store and the other cores handed over to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// Messages to other cores.
    pub messages_out: u64,
    /// Errands in them: requests to OSDs, most of them.
    pub errands: u64,
    /// Messages from other cores.
    pub messages_in: u64,
    /// Reports in them: answers of OSDs, most of them.
    pub reports: u64,
}

/// The CPU time that this thread has used.
fn cpu_time() -> Nanos {
    let usage = thread_usage();
    usage.user.plus(usage.system)
}

/// The store's side of its branches.
#[derive(Default)]
pub(super) struct Branches {
    /// The core of each branch.
    cores: Vec<Core>,
    /// The core of the store.
    home: usize,
    /// Connections that someone wants elsewhere.
    wanted: Vec<(OsdId, Option<BranchId>)>,
    pub(super) handed: HandedOver,
}

/// Reports of a branch.
pub(super) struct ReportsMail(BranchId, Vec<Report>);

impl Branches {
    /// Opens a branch on every other core.
    pub(super) fn open(client: &mut Client, io: &mut StoreIo<'_>) -> Self {
        let (Core(home), cores) = io.cores();
        let others = (1..cores.min(usize::from(u16::MAX))).map(|step| Core((home + step) % cores));
        let cores: Vec<Core> = others.collect();
        for (&core, branch) in cores.iter().zip((0..).map(BranchId)) {
            io.open_branch(core, Box::new(LinksSpec(branch)));
        }
        client.set_branches(u16::try_from(cores.len()).expect("bounded above"));
        Self { cores, home, ..Self::default() }
    }

    /// Takes a call. It is carried out in [`Branches::begin_moves`].
    pub(super) fn call(&mut self, mut call: Settings) -> Result<(), String> {
        let read = |call: &mut Settings| {
            let (mut osd, mut core) = (0_u32, 0_usize);
            call.number("osd", &mut osd)?;
            call.number("core", &mut core)?;
            Ok::<_, SettingError>((OsdId(osd), core))
        };
        let (osd, core) = read(&mut call).map_err(|error| error.to_string())?;
        call.finish().map_err(|error| error.to_string())?;
        let branch = self.cores.iter().position(|&Core(known)| known == core);
        if branch.is_none() && core != self.home {
            return Err(format!("core={core}: the server has no such core"));
        }
        let branch = branch.and_then(|branch| u16::try_from(branch).ok()).map(BranchId);
        self.wanted.push((osd, branch));
        Ok(())
    }

    /// Begins the moves that were called for. True if there were any.
    pub(super) fn begin_moves(&mut self, client: &mut Client, now: Nanos) -> bool {
        let moves = std::mem::take(&mut self.wanted);
        for &(osd, branch) in &moves {
            client.move_link(osd, branch, now);
        }
        !moves.is_empty()
    }

    /// Takes the reports of a branch.
    pub(super) fn reported(&mut self, mail: ReportsMail, client: &mut Client) {
        let ReportsMail(branch, reports) = mail;
        self.handed.messages_in += 1;
        self.handed.reports += reports.len() as u64;
        client.reported(branch, reports);
    }

    /// Sends the errands of this turn.
    pub(super) fn flush(&mut self, client: &mut Client, io: &mut StoreIo<'_>) {
        if self.cores.is_empty() {
            return;
        }
        client.measure(io.now, cpu_time);
        for (&core, branch) in self.cores.iter().zip((0..).map(BranchId)) {
            let errands = client.take_errands(branch);
            if !errands.is_empty() {
                self.handed.messages_out += 1;
                self.handed.errands += errands.len() as u64;
                io.send_branch(core, Box::new(errands));
            }
        }
    }

    /// Ends the branches.
    pub(super) fn close(&mut self, image: &str, client: &Client, io: &mut StoreIo<'_>) {
        if client.moves() > 0 {
            let (moves, handed) = (client.moves(), self.handed);
            tracing::info!("{image}: {moves} connections moved between cores; {handed:?}");
        }
        for core in self.cores.drain(..) {
            io.close_branch(core);
        }
    }
}

/// Makes the branch of this number.
#[derive(Debug)]
struct LinksSpec(BranchId);

impl BranchSpec for LinksSpec {
    fn open(self: Box<Self>, _: &mut BranchIo<'_>) -> Box<dyn Branch> {
        Box::new(LinksBranch { id: self.0, carrier: Carrier::new(Links::default()) })
    }
}

/// A branch of the client, with its sockets.
struct LinksBranch {
    id: BranchId,
    carrier: Carrier<Links>,
}

impl Branch for LinksBranch {
    fn event(&mut self, index: u32, event: Event, io: &mut BranchIo<'_>) {
        let device = io.device;
        self.carrier.event(index, event, io.reactor, |index| BranchIo::token_of(device, index));
    }

    fn mail(&mut self, mail: Mail, _: &mut BranchIo<'_>) {
        if let Ok(errands) = mail.downcast::<Vec<Errand>>() {
            self.carrier.machine.take(*errands);
        }
    }

    fn act(&mut self, io: &mut BranchIo<'_>) -> bool {
        let device = io.device;
        self.carrier.act(io.reactor, |index| BranchIo::token_of(device, index))
    }

    fn flush(&mut self, io: &mut BranchIo<'_>) {
        let machine = &mut self.carrier.machine;
        machine.measure(io.now, cpu_time);
        let reports = machine.take_reports();
        if !reports.is_empty() {
            io.send_home(Box::new(ReportsMail(self.id, reports)));
        }
        let device = io.device;
        self.carrier.flush(io.reactor, |index| BranchIo::token_of(device, index));
    }

    fn release(&mut self, io: &mut BranchIo<'_>) {
        let device = io.device;
        self.carrier.release(io.reactor, |index| BranchIo::token_of(device, index));
    }
}
