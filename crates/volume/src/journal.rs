//! Maintenance of the journal: syncs it, and moves it when one of its nodes fails.
//!
//! A move starts a new generation on nodes that are up. It writes the records that are still needed
//! there, at their old positions, syncs them, and then replaces the root. Only then does the volume
//! acknowledge appends again. A crash before that finds the old generation: its surviving nodes
//! have every acknowledged record.

use bytes::Bytes;
use fieldstone_block::{BlockError, Nanos};
use fieldstone_proto::{JournalGen, Lsn, NodeError, NodeIndex, RequestBody};

use crate::calls::CallResult;
use crate::core::{Ctx, VolumeCore};
use crate::failure::JournalRefusal;
use crate::node::Node;
use crate::root::Root;
use crate::status::NodeHealth;

/// Pause before the mover checks again whether enough nodes are up.
const WAIT_MS: u64 = 50;

/// How long the volume leaves a node alone that has no room for a journal.
const REFUSED_MS: u64 = 30_000;

/// Makes the journal stable for the requests that wait for this.
pub async fn sync_journal(ctx: Ctx) {
    loop {
        let (wanted, ready, target, generation, nodes) = ctx.with(|core| {
            let ready = !core.log.journal_move.has_to_move()
                && (core.life.is_opening() || core.life.serves());
            let wanted = core.sync_wanted();
            (wanted, ready, core.log.acked, core.log.generation, core.log.nodes.clone())
        });
        let over = ctx.with(|core| core.life.is_over());
        if !wanted || over {
            break;
        }
        if !ready && ctx.with(|core| !core.life.is_closing()) {
            ctx.sleep_ms(WAIT_MS / 10).await;
            continue;
        }
        if !sync_once(&ctx, target, generation, &nodes).await {
            ctx.sleep_ms(WAIT_MS / 10).await;
        }
    }
    ctx.with(|core| core.log.journal_sync.end());
}

/// Makes the journal of a generation, on these nodes, stable up to `target`. False if a node did
/// not do it: that node is given up, or the journal moves.
async fn sync_once(ctx: &Ctx, target: Lsn, generation: JournalGen, nodes: &[NodeIndex]) -> bool {
    let calls = ctx.with(|core| {
        let rows = core.row_nodes().into_iter().map(|node| (node, RequestBody::ShardSync));
        let rings = nodes.iter().map(|node| (*node, RequestBody::JournalSync { generation }));
        let wanted: Vec<_> = rings.chain(rows).collect();
        wanted.into_iter().map(|(node, body)| (node, core.call(node, body, Vec::new()))).collect()
    });
    let results = ctx.wait_all(calls).await;
    let mut good = true;
    for (node, result) in results {
        let Err(error) = result else { continue };
        good = false;
        ctx.with(|core| {
            if core.log.generation == generation && nodes.contains(&node) {
                core.log.journal_move.request();
            }
            if !matches!(error, NodeError::Unreachable | NodeError::NotFound) {
                core.give_up_node(node, &format!("journal sync: {error}"));
            }
        });
    }
    if good {
        ctx.with(|core| core.synced_up_to(target));
    }
    good
}

/// A volume closes without a checkpoint: makes the journal stable. It tries for as long as users
/// would wait. False if it could not.
pub async fn sync_at_end(ctx: &Ctx) -> bool {
    let begun = ctx.with(|core| core.now);
    while ctx.with(|core| core.life.is_closing() && !core.is_too_long(Some(begun))) {
        let (moving, target, generation, nodes) = ctx.with(|core| {
            let due = core.log.journal_move.has_to_move();
            (due, core.log.acked, core.log.generation, core.log.nodes.clone())
        });
        if !moving && sync_once(ctx, target, generation, &nodes).await {
            return true;
        }
        ctx.sleep_ms(WAIT_MS / 10).await;
    }
    false
}

impl VolumeCore {
    /// Starts to move the journal, if no task moves it already.
    pub fn start_mover(&mut self) {
        if self.life.serves_or_closes() && self.log.journal_move.begin_mover() {
            self.spawn_with(move_journal);
        }
    }

    /// The journal is on as many nodes as it should be, and does not have to move.
    pub fn journal_whole(&self) -> bool {
        let wanted = (self.shape.code().m() + 1).min(self.nodes.len());
        !self.log.journal_move.has_to_move() && self.log.nodes.len() >= wanted
    }

    /// The node has the volume's root, or a later version that too few nodes took.
    pub fn has_root(&self, node: NodeIndex) -> bool {
        let counts = self.committed.root().map_or(0, |root| root.version);
        counts > 0 && self.node(node).root_version >= counts
    }

    /// A node has no room for a journal. It may have room later: then a journal that lacks a copy
    /// moves again.
    fn journal_refused(&mut self, node: NodeIndex) {
        if std::mem::replace(&mut self.node_mut(node).refuses_journals, true) {
            return;
        }
        let sleep = self.sleep(Nanos::from_ms(REFUSED_MS));
        self.spawn_with(move |ctx| async move {
            sleep.await;
            ctx.with(|core| {
                core.node_mut(node).refuses_journals = false;
                if core.life.serves() && !core.journal_whole() {
                    core.log.journal_move.request_anew(); // a try under way lacks the node
                }
            });
        });
    }

    /// Journal nodes for a generation: m + 1 of the nodes that are up and have room for a journal,
    /// or as many as there are. Each node that is lost or has no room may cost the journal a copy,
    /// as long as these nodes are at most `missing_max`. If more nodes have no room, the volume
    /// tries them again: with fewer copies, writes would not survive the losses that they must
    /// survive.
    pub fn choose_journal_nodes(&mut self, generation: JournalGen) -> Vec<NodeIndex> {
        let up = |node: &Node| node.health == NodeHealth::Up;
        let willing = |node: &Node| up(node) && !node.refuses_journals;
        let too_few = self.too_few_take_journals();
        let takes = |node: &Node| if too_few { up(node) } else { willing(node) };
        let weights: Vec<u32> =
            self.nodes.iter().map(|node| if takes(node) { 0x1_0000 } else { 0 }).collect();
        let key = (self.config.volume.0 as u64) ^ generation.0.rotate_left(32);
        let placed = self.placement.pool().place_journal(key, self.shape.code().m() + 1, &weights);
        placed.into_iter().filter_map(|n| Some(NodeIndex(u16::try_from(n).ok()?))).collect()
    }

    /// So many nodes have no room for a journal that a journal on the others would not survive the
    /// losses that it must survive.
    fn too_few_take_journals(&self) -> bool {
        let willing = |node: &&Node| node.health == NodeHealth::Up && !node.refuses_journals;
        let m = self.shape.code().m();
        let taking = self.nodes.iter().filter(willing).count();
        let (lost, missing) = (self.nodes.len() - self.nodes_up(), self.nodes.len() - taking);
        let excused = if missing <= m { missing } else { lost.min(m) };
        taking < (m + 1).min(self.nodes.len()).saturating_sub(excused).max(1)
    }

    /// How many nodes had no room for a journal lately.
    pub fn journals_refused(&self) -> usize {
        self.nodes.iter().filter(|node| node.refuses_journals).count()
    }

    /// Why the volume could not make a journal.
    pub fn why_no_journal(&self) -> JournalRefusal {
        JournalRefusal { full: self.nodes_that(|node| node.refuses_journals) }
    }

    /// Nodes have no room for the new journal, so the volume can write nothing. Some time after
    /// `since`, it refuses the writes of users. True from then on.
    fn refuse_without_journal(&mut self, since: Nanos) -> bool {
        let long = self.is_too_long(Some(since));
        if long {
            self.fail_user_changes(&BlockError::NoSpace);
        }
        long
    }
}

async fn move_journal(ctx: Ctx) {
    let (mut refused_since, mut reported) = (None, false);
    loop {
        let state = ctx.with(|core| {
            if core.life.is_over() {
                return None;
            }
            if !core.writable() {
                let why = format!(
                    "only {} of {} nodes are reachable, {} are needed",
                    core.nodes_up(),
                    core.nodes.len(),
                    core.nodes_needed()
                );
                core.fail_user_changes(&BlockError::Io(why));
            }
            Some(core.writable())
        });
        match state {
            None => break,
            Some(false) => {
                refused_since = None;
                ctx.sleep_ms(WAIT_MS).await;
            }
            Some(true) => {
                if try_move(&ctx).await {
                    break;
                }
                let (refused, now) = ctx.with(|core| (core.too_few_take_journals(), core.now));
                if !refused {
                    refused_since = None;
                } else {
                    let since = *refused_since.get_or_insert(now);
                    let refuses = ctx.with(|core| core.refuse_without_journal(since));
                    if refuses && !std::mem::replace(&mut reported, true) {
                        ctx.with(|core| {
                            let why = core.why_no_journal();
                            let name = core.shape.name();
                            tracing::warn!(volume = %name, "{why}: writes are refused");
                        });
                    }
                }
                ctx.sleep_ms(if refused { WAIT_MS } else { 1 }).await;
            }
        }
    }
    ctx.with(|core| core.log.journal_move.end_mover());
}

async fn try_move(ctx: &Ctx) -> bool {
    let lock = ctx.with(|core| core.committed.lock());
    let guard = lock.acquire().await;
    let (generation, nodes) = ctx.with(|core| {
        let generation = core.committed.next_generation(core.log.generation);
        let nodes = core.choose_journal_nodes(generation);
        core.log.generation = generation; // answers of the old generation no longer count
        core.log.nodes.clone_from(&nodes);
        core.log.journal_move.begin_try();
        (generation, nodes)
    });
    if !write_generation(ctx, generation, &nodes).await {
        return false;
    }
    drop(guard);
    let placed = put_root(ctx, |root| {
        root.generation = generation;
        root.journal_nodes.clone_from(&nodes);
    })
    .await;
    let whole = ctx.with(|core| {
        nodes.iter().all(|node| core.node(*node).health == NodeHealth::Up)
            && !core.log.journal_move.is_in_vain()
            && core.log.generation == generation
    });
    if !placed || !whole {
        return false;
    }
    ctx.with(|core| {
        core.log.journal_move.succeed();
        core.acknowledge_all();
        let acked = core.log.acked;
        core.synced_up_to(acked);
    });
    let all = ctx.with(|core| core.up_nodes());
    ctx.call_all(&all, &RequestBody::JournalDelete { first: JournalGen(0), below: generation })
        .await;
    true
}

/// Creates a generation on `nodes` and writes to it, stable, every record that is still needed. If
/// that fails, deletes the generation on the nodes that it can reach.
pub async fn write_generation(ctx: &Ctx, generation: JournalGen, nodes: &[NodeIndex]) -> bool {
    let written = try_write_generation(ctx, generation, nodes).await;
    if !written {
        // No root names the generation.
        let body = RequestBody::JournalDelete { first: generation, below: generation.next() };
        ctx.call_all(nodes, &body).await;
    }
    written
}

async fn try_write_generation(ctx: &Ctx, generation: JournalGen, nodes: &[NodeIndex]) -> bool {
    let ring_bytes = ctx.with(|core| core.log.ring_bytes);
    let create = RequestBody::JournalCreate { generation, ring_bytes };
    let created = ctx.call_all(nodes, &create).await;
    ctx.with(|core| {
        for (node, _) in created.iter().filter(|(_, answer)| *answer == Err(NodeError::NoSpace)) {
            core.journal_refused(*node);
        }
    });
    if !all_good(ctx, created) {
        return false;
    }
    let mut from = Lsn(0);
    loop {
        // Sending a few records at a time bounds the records in flight. The front of the log may be
        // trimmed meanwhile, so the loop remembers a position of the log, not a count of records.
        let calls: Vec<_> = ctx.with(|core| {
            let (epoch, trimmed) = (core.writer.epoch(), core.log.trimmed);
            let mut calls = Vec::new();
            let messages: Vec<_> = core
                .log
                .records
                .iter_mut()
                .skip_while(|record| record.header.lsn < from)
                .take(8)
                .map(|record| {
                    record.header.generation = generation;
                    record.header.epoch = epoch;
                    record.header.trimmed = trimmed;
                    record.header.detached = false;
                    let mut payload: Vec<Bytes> = vec![record.header.encode()];
                    payload.extend(record.payload.iter().cloned());
                    (record.header.lsn, payload)
                })
                .collect();
            if let Some((last, _)) = messages.last() {
                from = last.plus(1);
            }
            for (lsn, payload) in messages {
                for node in nodes {
                    let body = RequestBody::JournalAppend { generation, lsn };
                    calls.push((*node, core.call(*node, body, payload.clone())));
                }
            }
            calls
        });
        if calls.is_empty() {
            break;
        }
        if !all_good(ctx, ctx.wait_all(calls).await) {
            return false;
        }
    }
    all_good(ctx, ctx.call_all(nodes, &RequestBody::JournalSync { generation }).await)
}

fn all_good(ctx: &Ctx, results: Vec<(NodeIndex, CallResult)>) -> bool {
    let mut good = true;
    for (node, result) in results {
        if let Err(error) = result {
            good = false;
            // A node without room for a journal still has its shards.
            if !matches!(error, NodeError::Unreachable | NodeError::NoSpace) {
                ctx.with(|core| core.give_up_node(node, &format!("journal: {error}")));
            }
        }
    }
    good
}

/// Replaces the root on all nodes that are up. True once enough of them have it.
pub async fn put_root(ctx: &Ctx, change: impl FnOnce(&mut Root)) -> bool {
    let lock = ctx.with(|core| core.committed.lock());
    let _guard = lock.acquire().await;
    let (root, nodes) = ctx.with(|core| {
        let mut root = core.committed.root().cloned().expect("a root exists from opening on");
        change(&mut root);
        root.version = core.committed.next_version();
        (root.epoch, root.put_by) = (core.writer.epoch(), core.writer.epoch());
        root.trimmed = core.log.trimmed;
        (root, core.up_nodes())
    });
    put_root_on(ctx, &root, &nodes).await
}

/// Writes `root` to `nodes`; if enough took it, it becomes the volume's root.
pub async fn put_root_on(ctx: &Ctx, root: &Root, nodes: &[NodeIndex]) -> bool {
    let encoded = fieldstone_buf::AlignedBuf::copy_from(&root.encode()).freeze();
    let sessions = ctx.with(|core| core.sessions_of(nodes));
    let calls: Vec<_> = ctx.with(|core| {
        nodes
            .iter()
            .map(|node| {
                let body = RequestBody::PutRoot { version: root.version };
                (*node, core.call(*node, body, vec![encoded.clone()]))
            })
            .collect()
    });
    let results = ctx.wait_all(calls).await;
    ctx.with(|core| {
        let mut taken = 0;
        for ((node, result), session) in results.into_iter().zip(sessions) {
            match result {
                Ok(_) => {
                    taken += 1;
                    // A node that came back meanwhile may be an empty replacement.
                    if core.node(node).link.session == session {
                        core.node_mut(node).root_version = root.version;
                    }
                }
                Err(NodeError::Unreachable) => {}
                Err(error) => core.give_up_node(node, &format!("root: {error}")),
            }
        }
        if taken >= core.nodes_needed() {
            core.committed.set_root(root.clone());
        }
        taken >= core.nodes_needed()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::VolumeFailure;
    use crate::script::{JOURNAL, Script};
    use crate::segment::State;
    use crate::status::VolumePhase;

    /// A volume that begins to close, and has no room for the checkpoint of its last segment.
    fn closing() -> Script {
        let mut script = Script::serving(6);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]);
        script.core(|core| {
            core.log.next = Lsn(4096);
            core.segments.set_state(handle, State::Closed);
            core.segments.get_mut(handle).expect("it was added").begun_at = Some(Nanos(1));
            core.node_mut(NodeIndex(5)).slots.free = 0;
        });
        script.volume.request_close();
        script
    }

    /// Nothing else makes the records stable that the next opening needs.
    #[test]
    fn a_volume_that_closes_without_a_checkpoint_syncs_its_journal() {
        let mut script = closing();
        let mut synced = Vec::new();
        for _ in 0..100 {
            for sent in script.sent() {
                if matches!(sent.request.body, RequestBody::JournalSync { .. }) {
                    synced.push(sent.node);
                }
                assert!(!matches!(sent.request.body, RequestBody::PutRoot { .. }), "no checkpoint");
                script.answer_with_room(&sent, Ok(fieldstone_proto::ReplyBody::Done), 0);
            }
            script.wait_ms(1_000);
        }
        assert_eq!(synced, JOURNAL);
        script.core(|core| assert_eq!(*core.life.phase(), VolumePhase::Closed));
    }

    /// If that fails too, the volume must not say that everything is stable.
    #[test]
    fn a_volume_whose_journal_is_not_stable_does_not_close_cleanly() {
        let mut script = closing();
        for _ in 0..100 {
            for sent in script.sent() {
                if !matches!(sent.request.body, RequestBody::JournalSync { .. }) {
                    script.answer_with_room(&sent, Ok(fieldstone_proto::ReplyBody::Done), 0);
                }
            }
            script.wait_ms(1_000);
        }
        let phase = script.core(|core| core.life.phase().clone());
        assert_eq!(phase, VolumePhase::Failed(VolumeFailure::JournalNotStable));
    }
}
