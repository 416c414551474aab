//! Monitors that die, hang, come back, lose requests, and answer late or twice; and a client of
//! theirs that checks what it is told.
//!
//! Checked: at most one session is used at a time; a subscription to the map of OSDs begins right
//! behind the newest epoch that the client has; the epochs that it gets have no gap; every request
//! is answered exactly once, within a time after the faults end; and the client neither spins nor
//! opens sessions in a loop.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::*;
use crate::encoding::{Decoder, Encoder, EntityAddress};
use crate::message::monitor::{self as wire, MonitorInfo};

/// The cluster.
pub(super) const FSID: Fsid = *b"the model's fsid";
const MS: u64 = 1_000_000;
/// The messenger notices silence after this.
const SILENCE_MS: u64 = 20_000;
/// Requests of a run.
const REQUESTS: usize = 60;
/// More attempts than this in a run are a loop.
const OPENS_MAX: usize = 600;

/// Where a monitor listens.
pub(super) fn addresses_of(index: usize) -> Addresses {
    let socket = format!("10.0.0.{}:3300", index + 1).parse().expect("an address");
    Addresses(vec![EntityAddress::msgr2(socket, 0)])
}

/// A list of these monitors.
pub(super) fn map_of(indices: Range<usize>, epoch: u32) -> MonMap {
    let name = |index: usize| char::from(b'a' + index as u8).to_string();
    let info = |index| MonitorInfo { addresses: addresses_of(index), ..MonitorInfo::default() };
    MonMap {
        fsid: FSID,
        epoch,
        monitors: indices.clone().map(|index| (name(index), info(index))).collect(),
        ranks: indices.map(name).collect(),
        ..MonMap::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Up,
    /// Refuses connections, or swallows them.
    Down,
    /// Takes connections and answers nothing.
    Hung,
    /// Refuses the key.
    Refuses,
}

#[derive(Debug)]
enum Step {
    Ready(MonitorSession),
    Closed(MonitorSession, bool),
    ToMonitor(MonitorSession, Message),
    ToClient(MonitorSession, Message),
    Fault,
    Ask,
    NewOsdMap,
}

struct Link {
    monitor: usize,
    /// The client knows that it is ready.
    is_used: bool,
    /// The next epoch of the map of OSDs to send; `None` without a subscription.
    osdmap: Option<u64>,
    /// Answers keep their order, as on a real connection.
    last: Nanos,
}

pub(super) struct World {
    seed: u64,
    rng: ChaCha8Rng,
    now: Nanos,
    monitors: Vec<State>,
    links: BTreeMap<MonitorSession, Link>,
    steps: BTreeMap<(Nanos, u64), Step>,
    last_step: u64,
    has_faults: bool,
    client: Monitors,
    /// The cluster's epoch of the map of OSDs.
    osdmap: u64,
    monmap: u32,
    /// The client's.
    have: u64,
    asked: BTreeSet<RequestId>,
    answered: BTreeSet<RequestId>,
    asks_left: usize,
    opens: usize,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let count = rng.random_range(1..=5);
        let mut monitors = vec![State::Up; count];
        if count > 1 && rng.random_ratio(1, 4) {
            monitors[0] = State::Refuses;
        }
        let options = Options {
            seed,
            parallel: rng.random_range(1..=3),
            request_patience: Nanos::from_ms(5_000),
            ..Options::default()
        };
        let mut client =
            Monitors::new((0..count).map(addresses_of).collect(), options, Nanos::default());
        client.subscribe_osdmap(0, true);
        let mut world = Self {
            seed,
            rng,
            now: Nanos(0),
            monitors,
            links: BTreeMap::new(),
            steps: BTreeMap::new(),
            last_step: 0,
            has_faults: true,
            client,
            osdmap: 10,
            monmap: 1,
            have: 0,
            asked: BTreeSet::new(),
            answered: BTreeSet::new(),
            asks_left: REQUESTS,
            opens: 0,
        };
        for step in [Step::Fault, Step::Ask, Step::NewOsdMap] {
            world.after(1, step);
        }
        world
    }

    fn at(&mut self, at: Nanos, step: Step) {
        self.last_step += 1;
        self.steps.insert((at, self.last_step), step);
    }

    fn after(&mut self, ms: u64, step: Step) {
        self.at(self.now.plus(Nanos::from_ms(ms)), step);
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.has_faults && self.rng.random_ratio(1, one_in)
    }

    fn ms(&mut self, range: Range<u64>) -> u64 {
        self.rng.random_range(range)
    }

    /// Runs with faults for a time, then without until all is settled.
    pub(super) fn run(mut self, faults: Nanos, settles: Nanos) {
        let mut idle = 0;
        loop {
            if self.has_faults && self.now >= faults {
                self.end_faults();
            }
            let is_settled = self.asks_left == 0
                && self.answered == self.asked
                && self.have == self.osdmap
                && !self.has_faults;
            if is_settled {
                break;
            }
            assert!(self.now < faults.plus(settles), "{}", self.unsettled());
            let deadline = self.client.deadline();
            let (&(at, _), _) = self.steps.first_key_value().expect("new maps never end");
            if deadline.is_some_and(|deadline| deadline <= at) {
                let deadline = deadline.unwrap_or(at);
                idle = if deadline > self.now { 0 } else { idle + 1 };
                assert!(idle < 10, "the deadline does not move: {}", self.unsettled());
                self.now = self.now.max(deadline);
                self.client.tick(self.now);
            } else {
                self.now = at;
                let (_, step) = self.steps.pop_first().expect("it was there");
                self.step(step);
            }
            self.follow();
        }
        assert!(self.opens < OPENS_MAX, "seed {}: {} attempts", self.seed, self.opens);
        assert_eq!(self.client.pending(), 0);
    }

    fn unsettled(&self) -> String {
        let waiting: Vec<_> = self.asked.difference(&self.answered).collect();
        let (seed, ms, have) = (self.seed, self.now.0 / MS, self.have);
        format!("seed {seed} at {ms} ms: map {have} of {}, waiting for {waiting:?}", self.osdmap)
    }

    fn end_faults(&mut self) {
        self.has_faults = false;
        for index in 0..self.monitors.len() {
            if self.monitors[index] != State::Refuses {
                self.monitors[index] = State::Up;
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ready(session) => {
                let Some(link) = self.links.get_mut(&session) else { return };
                link.is_used = self.client.ready(session, self.now);
            }
            Step::Closed(session, auth_failed) => {
                if self.links.remove(&session).is_some() {
                    self.client.closed(session, "closed", auth_failed, self.now);
                }
            }
            Step::ToClient(session, message) => {
                if self.links.contains_key(&session) {
                    self.client.received(session, message, self.now);
                }
            }
            Step::ToMonitor(session, message) => self.serve(session, &message),
            Step::Fault => self.fault(),
            Step::Ask => self.ask(),
            Step::NewOsdMap => {
                self.osdmap += 1;
                let sessions: Vec<_> = self.links.keys().copied().collect();
                for session in sessions {
                    self.send_maps(session);
                }
                let ms = self.ms(500..8_000);
                self.after(ms, Step::NewOsdMap);
            }
        }
    }

    fn fault(&mut self) {
        if !self.has_faults {
            return;
        }
        let index = self.rng.random_range(0..self.monitors.len());
        if self.monitors[index] != State::Refuses {
            let next = [State::Up, State::Up, State::Down, State::Hung];
            self.monitors[index] = next[self.rng.random_range(0..next.len())];
            // A dead process closes its connections; a dead host is silent.
            let delay = if self.rng.random() { 1 } else { SILENCE_MS };
            if self.monitors[index] != State::Up {
                let on = |link: &Link| link.monitor == index;
                let links = self.links.iter().filter(|(_, link)| on(link));
                let sessions: Vec<_> = links.map(|(&session, _)| session).collect();
                for session in sessions {
                    self.after(delay, Step::Closed(session, false));
                }
            }
        }
        self.monmap += u32::from(self.rng.random_ratio(1, 8));
        let ms = self.ms(100..8_000);
        self.after(ms, Step::Fault);
    }

    fn ask(&mut self) {
        if self.asks_left == 0 {
            return;
        }
        self.asks_left -= 1;
        let (now, client) = (self.now, &mut self.client);
        let id = match self.rng.random_range(0..6) {
            0 => client.get_version("osdmap", now),
            1 => client.command("{}".into(), Bytes::from_static(b"input"), now),
            2 => client.create_snap(PoolId(1), now),
            3 => client.remove_snap(PoolId(1), SnapId(4), now),
            4 => client.statfs(None, now),
            _ => client.pool_stats(vec!["pool".into()], now),
        };
        self.asked.insert(id.expect("there is room"));
        let ms = self.ms(1..4_000);
        self.after(ms, Step::Ask);
    }

    /// Does what the client wants, and checks what it is told.
    fn follow(&mut self) {
        while let Some(action) = self.client.poll_action() {
            match action {
                Action::Open { attempt, addresses, .. } => self.open(attempt, &addresses),
                Action::Close(session) => {
                    self.links.remove(&session).expect("only open sessions are closed");
                }
                Action::Send(session, message) => {
                    let used = self.links.iter().filter(|(_, link)| link.is_used);
                    let used: Vec<_> = used.map(|(&session, _)| session).collect();
                    assert_eq!(used, [session], "seed {}: one session is used", self.seed);
                    self.check_subscription(&message);
                    let ms = self.ms(1..20);
                    self.after(ms, Step::ToMonitor(session, message));
                }
            }
        }
        while let Some(event) = self.client.poll_event() {
            self.check(event);
        }
    }

    fn open(&mut self, attempt: MonitorSession, addresses: &Addresses) {
        self.opens += 1;
        let find = |&index: &usize| addresses_of(index) == *addresses;
        let monitor = (0..self.monitors.len()).find(find).expect("a monitor listens there");
        let link = Link { monitor, is_used: false, osdmap: None, last: self.now };
        self.links.insert(attempt, link);
        let ms = self.ms(1..50);
        match self.monitors[monitor] {
            State::Up | State::Hung => {
                let late = if self.chance(10) { 4_000 } else { 0 };
                self.after(ms + late, Step::Ready(attempt));
            }
            State::Refuses => self.after(ms, Step::Closed(attempt, true)),
            State::Down => {
                let late = if self.rng.random() { SILENCE_MS } else { 0 };
                self.after(ms + late, Step::Closed(attempt, false));
            }
        }
    }

    fn check_subscription(&self, message: &Message) {
        let Ok(subscribe) = Subscribe::decode(message) else { return };
        let osdmap = subscribe.what.get("osdmap").expect("it is subscribed to");
        let behind = if self.have == 0 { 0 } else { self.have + 1 };
        assert_eq!((osdmap.start, osdmap.once), (behind, false), "seed {}", self.seed);
    }

    fn check(&mut self, event: Event) {
        let id = match event {
            Event::CommandReply { id, reply } => {
                assert_eq!(reply.output, Bytes::from_static(b"input"));
                id
            }
            Event::Version { id, .. }
            | Event::PoolOpReply { id, .. }
            | Event::StatFs { id, .. }
            | Event::PoolStats { id, .. } => id,
            Event::OsdMaps(message) => {
                let mut front = Decoder::new(message.front);
                let mut epoch = || front.u64("an epoch").expect("an epoch");
                let (first, last) = (epoch(), epoch());
                assert!(self.have == 0 || first <= self.have + 1, "seed {}: a gap", self.seed);
                self.have = self.have.max(last);
                self.client.have_osdmap(self.have);
                return;
            }
            Event::Failed { .. } | Event::Trouble(Trouble::Refused(_)) => {
                panic!("seed {}: {event:?}", self.seed)
            }
            _ => return,
        };
        assert!(self.asked.contains(&id));
        assert!(self.answered.insert(id), "seed {}: {id:?} is answered twice", self.seed);
    }

    /// A monitor handles a message.
    fn serve(&mut self, session: MonitorSession, message: &Message) {
        let Some(link) = self.links.get(&session) else { return };
        if self.monitors[link.monitor] != State::Up {
            return;
        }
        if let Ok(subscribe) = Subscribe::decode(message) {
            self.serve_subscribe(session, &subscribe);
            return;
        }
        if self.chance(10) {
            return;
        }
        let answer = answer_to(message, self.osdmap);
        for _ in 0..1 + u32::from(self.chance(10)) {
            self.reply(session, answer.clone());
        }
    }

    fn serve_subscribe(&mut self, session: MonitorSession, subscribe: &Subscribe) {
        if let Some(monmap) = subscribe.what.get("monmap")
            && monmap.start <= self.monmap.into()
            && !self.chance(20)
        {
            let map = map_of(0..self.monitors.len(), self.monmap);
            self.reply(session, MonMapMessage { map }.encode());
        }
        if let Some(osdmap) = subscribe.what.get("osdmap") {
            let start = if osdmap.start == 0 { self.osdmap } else { osdmap.start };
            if let Some(link) = self.links.get_mut(&session) {
                link.osdmap = Some(start);
            }
            self.send_maps(session);
        }
    }

    fn send_maps(&mut self, session: MonitorSession) {
        let Some(link) = self.links.get_mut(&session) else { return };
        let is_up = self.monitors[link.monitor] == State::Up;
        let Some(next) = link.osdmap.filter(|&next| is_up && next <= self.osdmap) else { return };
        link.osdmap = Some(self.osdmap + 1);
        let mut front = Encoder::new();
        front.u64(next).u64(self.osdmap);
        self.reply(session, Message::new(MessageKind::OsdMap, 4, 3, front.finish()));
    }

    fn reply(&mut self, session: MonitorSession, message: Message) {
        let ms = if self.chance(10) { self.ms(1_000..15_000) } else { self.ms(1..50) };
        let at = self.now.plus(Nanos::from_ms(ms));
        let Some(link) = self.links.get_mut(&session) else { return };
        link.last = link.last.max(at);
        let at = link.last;
        self.at(at, Step::ToClient(session, message));
    }
}

/// A monitor's answer to a request.
fn answer_to(message: &Message, osdmap: u64) -> Message {
    let tid = message.tid;
    if let Ok(request) = wire::GetVersion::decode(message) {
        return GetVersionReply { id: request.id, newest: osdmap, oldest: 1 }.encode();
    }
    if let Ok(request) = wire::Command::decode(message) {
        assert_eq!(request.fsid, FSID);
        let (command, output) = (request.command, request.input);
        let (version, result, status) = (0, 0, String::new());
        return CommandAck { tid, version, result, status, command, output }.encode();
    }
    if let Ok(request) = wire::PoolOp::decode(message) {
        assert_eq!(request.fsid, FSID);
        let data = match request.kind {
            PoolOpKind::CreateSnap => PoolOpReply::data_of_snap(SnapId(5)),
            PoolOpKind::RemoveSnap => Bytes::new(),
        };
        let osdmap_epoch = osdmap as u32;
        return PoolOpReply { tid, fsid: FSID, result: 0, osdmap_epoch, data }.encode();
    }
    if let Ok(request) = wire::StatFs::decode(message) {
        assert_eq!(request.fsid, FSID);
        return StatFsReply { tid, fsid: FSID, ..StatFsReply::default() }.encode();
    }
    let request = wire::GetPoolStats::decode(message).expect("one of the requests");
    let pools = request.pools.into_iter().map(|pool| (pool, wire::PoolStats::default()));
    GetPoolStatsReply { tid, fsid: FSID, pools: pools.collect() }.encode()
}
