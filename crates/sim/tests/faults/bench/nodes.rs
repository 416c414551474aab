//! The nodes of the bench, their hosts and their files.

use super::*;

impl Bench {
    pub fn start_node(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        host.wanted = true;
        if host.process.is_some() {
            return;
        }
        let mut process = Node::new(NodeConfig {
            pool: host.pool,
            node: host.index,
            incarnation: host.incarnation,
            keys: host.key.into(),
            slot_bytes: SHARD_BYTES,
            slots: SLOTS,
            verify_payload: false,
            piece_bytes: fieldstone_node::limits::PIECE_BYTES,
            parity_memory: fieldstone_node::ParityMemory::new(
                fieldstone_node::limits::PARITY_MEMORY_BYTES,
            ),
        });
        process.start(0);
        host.life += 1;
        host.process = Some(process);
        self.pump_node(node);
    }

    /// The node's process dies. Its disk keeps its writes.
    pub fn stop_node(&mut self, node: usize) {
        self.nodes[node].wanted = false;
        self.node_dies(node);
    }

    fn node_dies(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        if host.process.take().is_none() {
            return;
        }
        host.life += 1;
        host.disk.kill();
        if let Some(peer) = self.process.as_ref().and_then(|process| process.links[node]) {
            self.schedule.after(NETWORK_NS, Happening::NodeDown { node, peer });
        }
    }

    /// The node gets an empty disk and a new identity.
    pub fn replace_node(&mut self, node: usize) {
        self.stop_node(node);
        self.nodes[node].disk.wipe();
        self.nodes[node].incarnation += 1000;
        self.start_node(node);
    }

    /// Ends the node's faults: from now on its operations succeed.
    pub fn lift(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        let hangs = host.delay_ns > HOST_RETRY_NS
            || host.injected_errors.iter().any(InjectedError::outlasts);
        host.injected_errors.clear();
        host.lie = None;
        host.dies_at = None;
        host.delay_ns = 0;
        host.silent = false;
        let wrong =
            (host.pool, host.index, host.key) != (PoolId(0xf1e1d), NodeIndex(node as u16), key());
        (host.pool, host.index, host.key) = (PoolId(0xf1e1d), NodeIndex(node as u16), key());
        // Operations that never end, and a wrong identity, end only with the process.
        if hangs || wrong || host.process.is_none() {
            self.stop_node(node);
            self.start_node(node);
        }
    }

    fn pump_node(&mut self, node: usize) {
        for round in 0.. {
            assert!(round < ACTIONS_MAX, "node {node} spins");
            let host = &mut self.nodes[node];
            let life = host.life;
            let Some(action) = host.process.as_mut().and_then(Node::next_action) else { break };
            match action {
                fieldstone_node::NodeAction::Disk { id, op } => {
                    let injected =
                        host.injected_errors.iter().find(|injected| injected.strikes(&op));
                    if let Some(InjectedError { error, .. }) = injected {
                        let Some(error) = error.clone() else { continue };
                        let delay_ns = host.delay_ns + NETWORK_NS;
                        let happening = Happening::Disk { node, life, id, forced: Some(error) };
                        self.schedule.after(delay_ns, happening);
                        continue;
                    }
                    let delay_ns = host.disk.submit(id, op) + host.delay_ns;
                    self.schedule.after(delay_ns, Happening::Disk { node, life, id, forced: None });
                }
                fieldstone_node::NodeAction::Relay { .. }
                | fieldstone_node::NodeAction::CloseLink { .. } => {
                    panic!("the volume of the bench sends to each node itself")
                }
                fieldstone_node::NodeAction::Reply { peer, reply } => {
                    self.schedule.after(NETWORK_NS, Happening::ToVolume { node, peer, reply });
                }
            }
        }
        let host = &mut self.nodes[node];
        let failure = host.process.as_ref().and_then(Node::failure).map(str::to_owned);
        if let Some(reason) = failure {
            host.down = Some(reason);
            self.node_dies(node);
            self.schedule.after(HOST_RETRY_NS, Happening::Start { node });
        } else if host.process.as_ref().is_some_and(Node::is_ready) {
            host.down = None;
        }
    }

    /// Tells a node how long its data file may be.
    pub fn set_room(&mut self, node: usize, room_bytes: u64) {
        self.node_event(node, fieldstone_node::NodeEvent::Room { room_bytes });
    }

    pub fn node_event(&mut self, node: usize, event: fieldstone_node::NodeEvent) {
        let now = self.now();
        let host = &mut self.nodes[node];
        if let Some(process) = &mut host.process {
            process.handle(now.0, event);
            self.pump_node(node);
        }
    }

    pub fn request_arrives(
        &mut self,
        node: usize,
        peer: PeerId,
        request: fieldstone_proto::Request,
    ) {
        let host = &self.nodes[node];
        if host.silent {
            return;
        }
        if host.dies_at.is_some_and(|dies| dies(&request.body)) {
            self.stop_node(node);
            self.start_node(node);
            return;
        }
        if let Some(lie) = host.lie.filter(|lie| (lie.to)(&request.body)) {
            let (tag, result) = (request.tag, (lie.result)(&request.body));
            let reply = Reply { tag, result, slots_free: SLOTS / 2 };
            self.schedule.after(NETWORK_NS, Happening::ToVolume { node, peer, reply });
            return;
        }
        self.node_event(node, fieldstone_node::NodeEvent::Request { peer, request });
    }
}

impl Bench {
    /// The files of the node of this kind, the newest last.
    pub fn files(&self, node: usize, kind: NodeFileKind) -> Vec<FileId> {
        let files = self.nodes[node].disk.files();
        files.into_iter().filter(|file| NodeFileKind::of(*file) == kind).collect()
    }

    /// The newest file of the kind.
    pub fn file(&self, node: usize, kind: NodeFileKind) -> FileId {
        let files = self.files(node, kind);
        *files.last().unwrap_or_else(|| panic!("node {node} has no file of the kind {kind:?}"))
    }

    pub fn bytes(&self, node: usize, kind: NodeFileKind) -> Vec<u8> {
        self.nodes[node].disk.bytes(self.file(node, kind)).expect("it is listed")
    }

    /// Changes the newest file of the kind without the node's knowledge.
    pub fn change(&mut self, node: usize, kind: NodeFileKind, change: impl FnOnce(&mut Vec<u8>)) {
        let file = self.file(node, kind);
        let before = self.bytes(node, kind);
        let mut bytes = before.clone();
        change(&mut bytes);
        assert_ne!(before, bytes, "the fault changes nothing");
        self.nodes[node].disk.put(file, &bytes);
    }

    /// Keeps a copy of every file of every node, for faults that bring old files back.
    pub fn remember_files(&mut self) {
        for host in &mut self.nodes {
            let files = host.disk.files();
            host.old =
                files.into_iter().filter_map(|id| Some((id, host.disk.bytes(id)?))).collect();
        }
    }
}
