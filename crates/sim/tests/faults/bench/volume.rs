//! The volume of the bench: its process, its connections, and its reports about nodes.

use super::*;

impl Bench {
    /// The sizes of the volume at its creation.
    pub fn geometry() -> Geometry {
        Geometry {
            size_bytes: BLOCKS * BLOCK_BYTES as u64,
            shard_bytes: SHARD_BYTES,
            unit_bytes: BLOCK_BYTES as u32,
            chunk_bytes: 0,
            ring_bytes: 256 << 10,
        }
    }

    /// Starts a process of the volume.
    pub fn start_volume(&mut self) {
        let profile = Profile::Rs { k: 4, m: usize::from(M) };
        let opening = match std::mem::replace(&mut self.created, true) {
            true => OpenMode::Open { takeover: false },
            false => OpenMode::Create {
                name: "v".into(),
                profile,
                geometry: Self::geometry(),
                provisioning: Provisioning::Thick,
            },
        };
        let config = VolumeConfig {
            volume: fieldstone_proto::VolumeId(7),
            opening,
            nodes: NODES,
            missing_max: M,
            authority: fieldstone_volume::Authority::Secrets(key().into()),
            wall_offset_ns: 0,
            node_timeout_ms: NODE_TIMEOUT_MS,
            fragment_bytes: 0,
            replicate: fieldstone_proto::Strategy::Flat,
            encode: fieldstone_proto::Encode::Client,
            reads: fieldstone_volume::ReadPolicy::Primary,
            auto_rebuild: true,
            rebuild_limit_bytes_per_second: 0,
        };
        self.processes += 1;
        let volume = Volume::new(config, self.now());
        let links = [None; NODES as usize];
        self.process = Some(Process { volume, number: self.processes, timer: None, links });
        for node in 0..usize::from(NODES) {
            self.connect_later(node, NETWORK_NS);
        }
        self.pump_volume();
    }

    /// The process of the volume dies.
    pub fn kill_volume(&mut self) {
        let Some(process) = self.process.take() else { return };
        for (node, peer) in process.links.into_iter().enumerate() {
            if let Some(peer) = peer {
                self.schedule.after(NETWORK_NS, Happening::PeerLost { node, peer });
            }
        }
    }

    /// Stops the volume's process for a while. The nodes go on, and their answers wait. Afterwards
    /// the process learns the time before it gets the answers.
    pub fn stop_volume_for(&mut self, ns: u64) {
        self.stopped_until = self.now().plus(Nanos(ns));
    }

    pub fn volume(&mut self) -> &mut Volume {
        &mut self.process.as_mut().expect("a process of the volume runs").volume
    }

    pub fn status(&self) -> Status {
        self.process.as_ref().expect("a process of the volume runs").volume.status()
    }

    pub fn phase(&self) -> VolumePhase {
        self.process.as_ref().expect("a process of the volume runs").volume.phase()
    }

    fn connect_later(&mut self, node: usize, delay_ns: u64) {
        let Some(process) = &self.process else { return };
        let number = process.number;
        self.schedule.after(delay_ns, Happening::Connect { node, process: number });
    }

    pub fn connect(&mut self, node: usize, number: u64) {
        // The hosts of nodes do the same, in the server and in a separate process.
        let runs = self.nodes[node].process.as_ref().is_some_and(Node::is_ready);
        let Some(process) = self.process.as_mut().filter(|process| process.number == number) else {
            return;
        };
        if process.links[node].is_some() {
            return;
        }
        if !runs {
            return self.connect_later(node, CONNECT_RETRY_NS);
        }
        self.peers += 1;
        process.links[node] = Some(PeerId(self.peers));
        self.volume_event(fieldstone_volume::VolumeEvent::NodeUp(NodeIndex(node as u16)));
    }

    pub fn volume_event(&mut self, event: fieldstone_volume::VolumeEvent) {
        let now = self.now();
        if let Some(process) = &mut self.process {
            process.volume.handle(event, now);
            self.pump_volume();
        }
    }

    pub fn pump_volume(&mut self) {
        let now = self.now();
        let mut completions: Vec<Completion> = Vec::new();
        for round in 0.. {
            assert!(round < ACTIONS_MAX, "the volume spins");
            let Some(process) = &mut self.process else { return };
            process.volume.poll(now, &mut completions);
            let mut rests = completions.is_empty();
            for completion in completions.drain(..) {
                self.answers.insert(completion.id.0, completion.result);
            }
            while let Some(action) = process.volume.next_action() {
                rests = false;
                match action {
                    fieldstone_volume::VolumeAction::Issue { .. } => {
                        unreachable!("the volume has the secrets")
                    }
                    fieldstone_volume::VolumeAction::Send { node, request } => {
                        let node = usize::from(node.0);
                        if let Some(peer) = process.links[node] {
                            let happening = Happening::ToNode { node, peer, request };
                            self.schedule.after(NETWORK_NS, happening);
                        }
                    }
                    fieldstone_volume::VolumeAction::Job { id, job } => {
                        let result = fieldstone_accel::execute(&job);
                        process
                            .volume
                            .handle(fieldstone_volume::VolumeEvent::JobDone { id, result }, now);
                    }
                    fieldstone_volume::VolumeAction::Reconnect { node } => {
                        let node = usize::from(node.0);
                        if let Some(peer) = process.links[node].take() {
                            self.schedule.after(NETWORK_NS, Happening::PeerLost { node, peer });
                        }
                        let number = process.number;
                        let happening = Happening::Connect { node, process: number };
                        self.schedule.after(CONNECT_RETRY_NS, happening);
                    }
                }
            }
            if rests {
                break;
            }
        }
        if let Some(process) = &mut self.process
            && let Some(deadline) = process.volume.deadline()
        {
            let at = deadline.max(now.plus(Nanos(1000)));
            if process.timer.is_none_or(|timer| at < timer) {
                process.timer = Some(at);
                let number = process.number;
                self.schedule.at(at, Happening::Timer { process: number, at });
            }
        }
        self.watch();
    }

    /// Notes the volume's reports about its nodes.
    fn watch(&mut self) {
        let Some(victim) = self.victim else { return };
        let status = self.status();
        let serves = status.phase == VolumePhase::Serving;
        for (index, node) in status.nodes.iter().enumerate() {
            let reason = node.reason.as_str();
            if index == victim {
                let host = self.nodes[index].down.as_deref();
                let reason = host.unwrap_or(reason);
                let new = !reason.is_empty() && self.told.iter().all(|told| told != reason);
                if new {
                    self.told.push(reason.to_owned());
                }
                continue;
            }
            let innocent = matches!(reason, "" | "not connected yet" | "the connection is gone");
            if !innocent || (serves && node.health == NodeHealth::Down) {
                let text = format!("{} {:?} ({reason})", node.node, node.health);
                self.accused.get_or_insert(text);
            }
        }
    }

    /// The node has no fault.
    pub fn is_sound(&self, node: usize) -> bool {
        let host = &self.nodes[node];
        host.injected_errors.is_empty() && host.lie.is_none() && host.delay_ns == 0 && !host.silent
    }

    /// The volume's own report, for failure texts.
    pub fn describe(&self) -> String {
        let status = self.status();
        let down: Vec<String> = (self.nodes.iter().zip(&status.nodes))
            .filter(|(host, node)| host.down.is_some() || node.health != NodeHealth::Up)
            .map(|(host, node)| {
                format!("{} {:?} {} {:?}", node.node, node.health, node.reason, host.down)
            })
            .collect();
        format!(
            "{:?}, degraded {}, missing {}, rebuilding {}, scrubbing {}, \
             journal whole {}, not up: {down:?}",
            status.phase,
            status.segments_degraded,
            status.shards_missing,
            status.rebuild.running,
            status.scrub.running,
            status.journal_whole,
        )
    }
}
