//! The writer that the volume is: its epoch, and the capabilities for this epoch.
//!
//! Every request carries a capability. It names the volume and the epoch, and is valid for a
//! lifetime. Nodes refuse it once they know a newer epoch.
//!
//! # Who issues
//!
//! A volume with the pool's secrets issues for itself ([`Authority::Secrets`]), and has the result
//! at once. A volume without them asks its world ([`Authority::World`]):
//!
//! ```text
//!          asks             the world issues           half of the lifetime is over: asks
//!  (none) ------> (asked) -------------------> (held) -----------------------------------+
//!                  ^   |  no answer: asks again   ^                                      |
//!                  +---+                          +--------------------------------------+
//! ```
//!
//! Meanwhile the volume uses the capability that it has. When the lifetime is over, the capability
//! has *lapsed*: then the volume is as if it had lost all its nodes, and refuses requests. With the
//! next capability, the volume connects to all nodes again.
//!
//! # Invariants
//! - An attempt to open the volume chooses a higher epoch than all attempts before it
//!   ([`OpeningAttempts::epoch_tried`](crate::open::OpeningAttempts)). Before that, its probe asks
//!   with epoch 0. An inspection uses the epoch of the newest root.
//! - A volume takes an epoch ([`Ctx::take_epoch`]) only with a capability for it.
//! - The capability is of the secret that signs at present ([`keys`](crate::keys)), or the volume
//!   has asked for that one.
//! - When a request leaves, its capability is valid for at least half of its lifetime. If the world
//!   issues late, this may be less, but not nothing. The volume counts the lifetime from the
//!   arrival of the capability by its own clocks, so the issuer's clock may differ.

use std::collections::BTreeMap;

use fieldstone_block::Nanos;
use fieldstone_proto::{Capability, CapabilityError, Epoch, NodeIndex, Rights};
use fieldstone_tasks::{Awaited, Filler, oneshot};

use crate::core::{Ctx, VolumeCore};
use crate::interface::{Authority, VolumeAction};
use crate::keys::Reissue;
use crate::wall_clock::WallClock;

/// How long a capability is valid that the volume issues for itself.
const CAPABILITY_NS: u64 = 3_600_000_000_000;
/// How long the volume waits for a capability before it asks the world again.
const ASK_AGAIN_MS: u64 = 2_000;
/// The least time between two questions that refusals of nodes cause.
const REFUSALS_GAP: Nanos = Nanos::from_ms(500);
/// Why the volume gives its nodes up and refuses requests, when its capability has lapsed.
pub const LAPSED: &str =
    "the volume's capability has lapsed: the metadata service has not issued the next one";

/// The identity of a volume's writer.
pub struct Writer {
    epoch: Epoch,
    /// By epoch. Only an inspection has others than that of the writer.
    held: BTreeMap<Epoch, Held>,
    /// What the volume has asked the world for.
    asked: BTreeMap<Epoch, Asked>,
    /// The volume has given its nodes up because its capability had lapsed.
    lapsed: bool,
    /// When the volume last asked because a node had refused a request.
    refused_at: Option<Nanos>,
    wall_clock: WallClock,
    /// The requests that an older secret signed.
    pub reissue: Reissue,
}

/// A capability, and when it came.
#[derive(Clone, Copy)]
struct Held {
    capability: Capability,
    /// For so long it is valid, from its issue.
    lifetime_ns: u64,
    /// When it came, by the volume's clock and by the time of day.
    since: Nanos,
    since_wall_ns: u64,
}

/// A capability that the world has been asked for.
struct Asked {
    /// When it was asked last.
    at: Nanos,
    /// The tasks that wait for it.
    waiting: Vec<Filler<()>>,
}

impl Held {
    /// Whether half of its lifetime is over, by either clock. The time of day goes on while the
    /// machine is suspended, the volume's clock does not.
    fn is_due(&self, now: Nanos, wall_ns: u64) -> bool {
        let half_ns = self.lifetime_ns / 2;
        let by_wall_ns = wall_ns.saturating_sub(self.since_wall_ns);
        now.since(self.since).0 >= half_ns || by_wall_ns >= half_ns
    }

    /// Whether its lifetime is over. A jump of this machine's time of day does not end it.
    fn has_lapsed(&self, now: Nanos) -> bool {
        now.since(self.since).0 >= self.lifetime_ns
    }
}

impl Writer {
    /// A writer without an epoch, and without a capability.
    pub fn new(wall_offset_ns: u64) -> Self {
        Self {
            epoch: Epoch(0),
            held: BTreeMap::new(),
            asked: BTreeMap::new(),
            lapsed: false,
            refused_at: None,
            wall_clock: WallClock::new(wall_offset_ns),
            reissue: Reissue::default(),
        }
    }

    /// The writer's epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
}

impl Ctx {
    /// Sends requests with capabilities for this epoch from now on. Waits until there is one.
    pub async fn take_epoch(&self, epoch: Epoch) {
        self.await_capability(epoch).await;
        self.with(|core| core.set_epoch(epoch));
    }

    /// Waits until the volume has a capability for this epoch.
    pub async fn await_capability(&self, epoch: Epoch) {
        let Some(awaited) = self.with(|core| core.want_capability(epoch)) else { return };
        let text = "a capability from the metadata service".to_owned();
        let before = self.with(|core| std::mem::replace(&mut core.attempts.waits_for, text));
        awaited.await;
        self.with(|core| core.attempts.waits_for = before);
    }
}

impl VolumeCore {
    /// Sends requests with capabilities for this epoch from now on. Without one, requests fail as
    /// if their nodes were not connected: see [`Ctx::take_epoch`].
    pub fn set_epoch(&mut self, epoch: Epoch) {
        self.writer.epoch = epoch;
        // A late answer for an epoch that is not in use must not count.
        self.writer.held.retain(|of, _| *of == epoch);
        self.writer.asked.retain(|of, _| *of == epoch);
        self.note_oldest_held();
        self.attempts.epoch_tried = self.attempts.epoch_tried.max(epoch);
        self.nodes.iter_mut().for_each(|node| node.epoch = epoch);
        if !self.writer.held.contains_key(&epoch) {
            self.ask_for_capability(epoch);
        }
    }

    /// The world says the time of day: `offset_ns` is that time minus the volume's clock.
    pub fn set_wall_clock(&mut self, offset_ns: u64) {
        self.writer.wall_clock.set(self.now, offset_ns);
    }

    fn wall_ns(&self) -> u64 {
        self.writer.wall_clock.for_issue(self.now)
    }

    /// The capability for requests to a node, renewed in good time; `None` if there is none that
    /// is valid.
    pub fn current_capability(&mut self, node: NodeIndex) -> Option<Capability> {
        let epoch = self.node(node).epoch;
        let (now, wall_ns) = (self.now, self.wall_ns());
        // The clock was set back: what the volume has issued would outlive its lifetime.
        let is_set_back = |held: &Held| self.issues_itself() && wall_ns < held.since_wall_ns;
        let is_due = |held: &Held| held.is_due(now, wall_ns) || is_set_back(held);
        if self.writer.held.get(&epoch).is_none_or(is_due) {
            self.ask_for_capability(epoch);
        }
        let held = self.writer.held.get(&epoch)?;
        (!held.has_lapsed(now)).then_some(held.capability)
    }

    fn issues_itself(&self) -> bool {
        matches!(self.config.authority, Authority::Secrets(_))
    }

    /// A node refuses the volume's capability. If it has expired by the node's clock, or is of a
    /// secret that is retired, the world may have another one.
    pub fn note_refusal(&mut self, node: NodeIndex, error: CapabilityError) {
        let is_outdated = matches!(
            error,
            CapabilityError::Expired
                | CapabilityError::Retired
                | CapabilityError::UnknownGeneration
        );
        // Each request under way may be refused.
        let is_due = self.writer.refused_at.is_none_or(|at| self.now.since(at) >= REFUSALS_GAP);
        if is_outdated && is_due && !self.issues_itself() && !self.life.is_over() {
            self.writer.refused_at = Some(self.now);
            self.ask_for_capability(self.node(node).epoch);
        }
    }

    /// Gets capabilities of the secret that signs at present, for all epochs in use.
    pub fn renew_capabilities(&mut self) {
        let epochs: Vec<Epoch> = self.writer.held.keys().copied().collect();
        for epoch in epochs {
            self.ask_for_capability(epoch);
        }
    }

    /// Asks for a capability, if there is none for this epoch. Returns what waits for it.
    fn want_capability(&mut self, epoch: Epoch) -> Option<Awaited<()>> {
        if self.writer.held.contains_key(&epoch) {
            return None;
        }
        self.ask_for_capability(epoch);
        let asked = self.writer.asked.get_mut(&epoch)?;
        let (filler, awaited) = oneshot();
        asked.waiting.push(filler);
        Some(awaited)
    }

    /// Issues a capability, or asks the world to. The world is asked once at a time for each epoch.
    fn ask_for_capability(&mut self, epoch: Epoch) {
        let (volume, wall_ns) = (self.config.volume, self.wall_ns());
        if let Authority::Secrets(keys) = &self.config.authority {
            let key = keys.derive(volume, epoch);
            let expires_ns = wall_ns.saturating_add(CAPABILITY_NS);
            let issued = Capability::issue(&key, volume, epoch, Rights::ALL, expires_ns);
            return self.hold(issued, CAPABILITY_NS);
        }
        let at = self.now;
        self.writer.asked.entry(epoch).or_insert_with(|| {
            self.outbox.act(VolumeAction::Issue { epoch });
            Asked { at, waiting: Vec::new() }
        });
    }

    /// The world has issued a capability.
    pub fn take_capability(&mut self, capability: Capability, lifetime_ns: u64) {
        if capability.volume != self.config.volume {
            return;
        }
        let epoch = capability.epoch;
        let wanted = self.writer.asked.remove(&epoch);
        // An answer to a question that was asked twice may be of an older secret.
        let is_older =
            |held: &Held| held.capability.rights.generation() > capability.rights.generation();
        let outdated = self.writer.held.get(&epoch).is_some_and(is_older);
        let is_in_use = wanted.is_some() || self.writer.held.contains_key(&epoch);
        if is_in_use && !outdated {
            self.hold(capability, lifetime_ns);
        }
        for filler in wanted.into_iter().flat_map(|asked| asked.waiting) {
            filler.fill(());
        }
        if std::mem::take(&mut self.writer.lapsed) {
            for node in (0..self.config.nodes).map(NodeIndex) {
                self.outbox.act(VolumeAction::Reconnect { node });
            }
        }
    }

    fn hold(&mut self, capability: Capability, lifetime_ns: u64) {
        let (since, since_wall_ns) = (self.now, self.wall_ns());
        let held = Held { capability, lifetime_ns, since, since_wall_ns };
        self.writer.held.insert(capability.epoch, held);
        self.note_oldest_held();
    }

    /// The oldest secret that signed what the volume holds may sign the next request.
    fn note_oldest_held(&mut self) {
        let generations = self.writer.held.values().map(|held| held.capability.rights.generation());
        if let Some(oldest) = generations.min() {
            self.note_signing(oldest);
        }
    }

    /// Asks the world in good time, and again if it does not answer. Gives the nodes up when the
    /// capability has lapsed.
    pub fn check_capability(&mut self) {
        if self.issues_itself() || self.life.is_over() {
            return;
        }
        for (epoch, asked) in &mut self.writer.asked {
            if self.now.since(asked.at) >= Nanos::from_ms(ASK_AGAIN_MS) {
                asked.at = self.now;
                self.outbox.act(VolumeAction::Issue { epoch: *epoch });
            }
        }
        let (now, wall_ns, epoch) = (self.now, self.wall_ns(), self.writer.epoch);
        let Some(held) = self.writer.held.get(&epoch).copied() else { return };
        if held.is_due(now, wall_ns) {
            self.ask_for_capability(epoch);
        }
        // In an opening, the attempt fails, and the next one asks for a capability first.
        if held.has_lapsed(now) && !self.writer.lapsed && !self.life.is_opening() {
            self.writer.lapsed = true;
            tracing::warn!(volume = %self.shape.name(), "{LAPSED}");
            for node in self.nodes_that(|node| node.link.connected) {
                self.node_lost(node, LAPSED);
            }
        }
    }

    /// When [`VolumeCore::check_capability`] has something to do, by the volume's clock.
    pub fn next_capability_check(&self) -> Option<Nanos> {
        if self.issues_itself() || self.life.is_over() {
            return None;
        }
        let again = |asked: &Asked| asked.at.plus(Nanos::from_ms(ASK_AGAIN_MS));
        let again = self.writer.asked.values().map(again).min();
        let held = self.writer.held.get(&self.writer.epoch);
        let at = |held: &Held, part_ns: u64| held.since.plus(Nanos(part_ns));
        let renewal = held.map(|held| at(held, held.lifetime_ns / 2)).filter(|_| again.is_none());
        let may_lapse = !self.writer.lapsed && !self.life.is_opening();
        let lapse = held.map(|held| at(held, held.lifetime_ns)).filter(|_| may_lapse);
        [again, renewal, lapse].into_iter().flatten().min()
    }

    /// True from the time when the capability has lapsed until the next one comes.
    pub fn has_lapsed(&self) -> bool {
        self.writer.lapsed
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_block::{Backend, BlockError, Nanos};
    use fieldstone_proto::{
        KeyGeneration, MasterKey, NodeError, PoolKeys, ReplyBody, RequestBody, VolumeId,
    };

    use super::*;
    use crate::failure::VolumeFailure;
    use crate::interface::{OpenMode, VolumeEvent};
    use crate::script::Script;
    use crate::status::VolumePhase;

    #[test]
    fn capabilities_are_issued_by_the_present_time_of_day() {
        const MINUTE_NS: u64 = CAPABILITY_NS / 60;
        let mut script = Script::serving(6);
        // What is left of the present capability, by the time of day, at a time of the volume's
        // clock.
        let mut left_ns = |at: Nanos, offset_ns: u64, told_ns: u64| {
            script.volume.handle(VolumeEvent::WallClock { offset_ns: told_ns }, at);
            let expires_ns = script
                .core(|core| core.current_capability(NodeIndex(0)).map(|held| held.expires_ns));
            let expires_ns = expires_ns.expect("there is one");
            expires_ns - (at.0 + offset_ns)
        };
        let at = Nanos::from_ms;
        let wall_ns = 500_000 * CAPABILITY_NS;
        assert_eq!(left_ns(at(1_000), wall_ns, wall_ns), CAPABILITY_NS);
        let soon_ns = wall_ns + 29 * MINUTE_NS;
        assert_eq!(left_ns(at(1_000), soon_ns, soon_ns), 31 * MINUTE_NS, "still good");
        // The machine was suspended: the volume's own clock stood still.
        let later_ns = wall_ns + 2 * CAPABILITY_NS;
        assert_eq!(left_ns(at(1_000), later_ns, later_ns), CAPABILITY_NS);
        // A time server sets a wrong clock back. Nodes may not know yet: for them nothing is over.
        let back_ns = wall_ns - 5 * CAPABILITY_NS;
        let left = left_ns(at(5_000), later_ns, back_ns);
        assert!((CAPABILITY_NS / 2..=CAPABILITY_NS).contains(&left), "{left}");
        // Then the next capability does not outlive its hour.
        assert_eq!(left_ns(at(8_000), back_ns, back_ns), CAPABILITY_NS);
    }

    /// The volume has no secret, so that nothing can be sent before the world has issued.
    #[test]
    fn a_volume_without_secrets_asks_before_it_sends_and_asks_again() {
        let mut script = Script::opening_without_secrets(4, OpenMode::Open { takeover: false });
        for node in 0..4 {
            script.volume.handle(VolumeEvent::NodeUp(NodeIndex(node)), Nanos(0));
        }
        assert!(script.sent().is_empty());
        assert_eq!(script.asked, [Epoch(0)]);
        assert!(script.volume.waits_for(Nanos(0)).contains("a capability"));
        // The question was lost.
        script.asked.clear();
        script.wait_ms(ASK_AGAIN_MS);
        assert!(script.sent().is_empty());
        assert_eq!(script.asked, [Epoch(0)]);
        script.issue(60_000);
        let sent = script.sent();
        assert_eq!(sent.len(), 4);
        assert!(sent.iter().all(|sent| sent.request.body == RequestBody::ListVolumes));
        for sent in &sent {
            script.answer(sent, Ok(ReplyBody::Volumes(Vec::new())));
        }
        // The probe asks with the same epoch. The fence needs a capability for the next one.
        for sent in script.sent() {
            assert_eq!(sent.request.capability.epoch, Epoch(0));
            script.answer(&sent, Err(NodeError::NotFound));
        }
        script.sent();
        assert_eq!(script.asked, [] as [Epoch; 0], "the attempt has failed, and begins anew");
        script.volume.handle(VolumeEvent::NotIssued("no such client".to_owned()), Nanos(0));
        script.sent();
        let refused = VolumeFailure::NotIssued("no such client".to_owned());
        assert_eq!(script.volume.phase(), VolumePhase::Failed(refused));
    }

    #[test]
    fn a_capability_is_renewed_in_time_and_without_one_the_volume_waits() {
        const LIFETIME_MS: u64 = 60_000;
        let mut script = Script::serving(8);
        script.ask_the_world();
        script.volume.handle(VolumeEvent::Renew, Nanos(0));
        script.sent();
        assert_eq!(script.asked, [Epoch(1)]);
        script.issue(LIFETIME_MS);
        assert!(script.volume.deadline() <= Some(Nanos::from_ms(LIFETIME_MS / 2)));
        script.wait_ms(LIFETIME_MS / 2);
        script.sent();
        assert_eq!(script.asked, [Epoch(1)], "although nothing was sent");
        script.wait_ms(LIFETIME_MS / 2 - 1);
        script.sent();
        assert!(script.core(|core| core.current_capability(NodeIndex(3))).is_some());
        script.wait_ms(1);
        script.write(0, 1);
        assert!(script.sent().is_empty(), "it has lapsed");
        script.core(|core| assert_eq!(core.nodes_up(), 0));
        assert!(script.volume.waits_for(Nanos(0)).contains("a capability"));
        script.write(0, 1);
        script.sent();
        for refused in std::mem::take(&mut script.completions) {
            assert!(matches!(refused.result, Err(BlockError::Io(_))), "{refused:?}");
        }
        assert!(script.reconnects.is_empty(), "without a capability that helps nothing");
        script.issue(LIFETIME_MS);
        script.sent();
        assert_eq!(script.reconnects.len(), 8);
        assert!(!script.volume.waits_for(Nanos(0)).contains("a capability"));
        script.core(|core| assert!(core.current_capability(NodeIndex(3)).is_some()));
    }

    /// Two answers may overtake each other, and others may be for another volume.
    #[test]
    fn a_capability_that_was_not_wanted_or_is_older_is_not_used() {
        let mut script = Script::serving(8);
        script.ask_the_world();
        let (volume, lifetime_ns) = (VolumeId(0x77), 1 << 40);
        let keys = PoolKeys::from(MasterKey([7; 16])).stage(MasterKey([8; 16])).expect("settled");
        let mut issued = |of: VolumeId, epoch: Epoch, generation: u16| {
            let key = keys.derive_for(KeyGeneration(generation), of, epoch).expect("accepted");
            let capability = Capability::issue(&key, of, epoch, Rights::ALL, u64::MAX);
            script.volume.handle(VolumeEvent::Issued { capability, lifetime_ns }, Nanos(0));
            let present = script.core(|core| core.current_capability(NodeIndex(0)));
            present.map(|held| (held.volume, held.epoch, held.rights.generation().0))
        };
        assert_eq!(issued(volume, Epoch(1), 1), Some((volume, Epoch(1), 1)));
        assert_eq!(issued(volume, Epoch(1), 0), Some((volume, Epoch(1), 1)), "older");
        assert_eq!(issued(volume, Epoch(9), 1), Some((volume, Epoch(1), 1)), "not asked for");
        assert_eq!(issued(VolumeId(1), Epoch(1), 1), Some((volume, Epoch(1), 1)));
    }

    /// The volume asked twice for an epoch that it does not use any more. What it has for its
    /// present epoch is of an older secret.
    #[test]
    fn an_answer_for_an_epoch_of_before_says_nothing_about_the_secret_in_use() {
        let mut script = Script::serving(8);
        script.ask_the_world();
        script.core(|core| {
            core.set_epoch(Epoch(2));
            core.set_epoch(Epoch(3));
        });
        script.sent();
        assert_eq!(script.asked, [Epoch(2), Epoch(3)]);
        let keys = PoolKeys::from(MasterKey([7; 16])).stage(MasterKey([8; 16])).expect("settled");
        for (epoch, generation) in [(Epoch(3), 0), (Epoch(2), 1), (Epoch(4), 1)] {
            if epoch == Epoch(4) {
                assert_eq!(script.volume.oldest_generation(), KeyGeneration(0));
                script.core(|core| core.set_epoch(epoch));
            }

            let volume = VolumeId(0x77);
            let key = keys.derive_for(KeyGeneration(generation), volume, epoch).expect("accepted");
            let capability = Capability::issue(&key, volume, epoch, Rights::ALL, u64::MAX);
            let issued = VolumeEvent::Issued { capability, lifetime_ns: 1 << 40 };
            script.volume.handle(issued, Nanos(0));
        }
        assert_eq!(script.volume.oldest_generation(), KeyGeneration(1));
    }

    /// The clocks of the nodes and of the issuer may jump where this machine's does not.
    #[test]
    fn a_capability_that_nodes_refuse_as_outdated_is_asked_for_anew() {
        for (error, asks) in [
            (CapabilityError::Expired, true),
            (CapabilityError::Retired, true),
            (CapabilityError::UnknownGeneration, true),
            (CapabilityError::Forged, false),
        ] {
            let mut script = Script::serving(8);
            script.ask_the_world();
            script.start(|ctx| async move {
                let _ = ctx.call(NodeIndex(0), RequestBody::Stat).await;
            });
            let sent = script.sent_one();
            script.answer(&sent, Err(NodeError::Capability(error)));
            script.sent();
            assert_eq!(script.asked.len(), usize::from(asks), "{error}");
        }
    }
}
