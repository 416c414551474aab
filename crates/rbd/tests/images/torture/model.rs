//! Carries courses out on a model of a cluster.

use fieldstone_block::{Completion, Nanos, Payload, RequestId};
use fieldstone_cluster_model::Delays;
use fieldstone_rados::cluster::SnapId;
use fieldstone_rbd::{ImageSpec, RbdError};

use super::course::{Carrier, Checked, Io, Order};
use crate::world::{World, spec};

/// So long after the death of a client, none of its requests is executed any more.
const SETTLED: Nanos = Nanos::from_ms(10);

pub struct ModelCarrier {
    world: World,
    /// The guest that has the image open.
    guest: usize,
}

impl ModelCarrier {
    pub fn new(seed: u64) -> Self {
        let mut world = World::new(seed, Delays::USUAL);
        world.uses_clients_again();
        world.model.add_erasure_coded_pool("data");
        Self { world, guest: usize::MAX }
    }

    fn submit(&mut self, request: Io) -> RequestId {
        let Io { op, offset, len, data, no_hole } = request;
        self.world.submit_flagged(self.guest, op, offset, len, data, no_hole)
    }
}

impl Carrier for ModelCarrier {
    fn open(&mut self, image: &str) -> Result<(), String> {
        self.guest = self.world.open(image);
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        self.world.close(self.guest);
        Ok(())
    }

    fn kill(&mut self, in_flight: Vec<Io>) -> Result<(), String> {
        // Some of them get nowhere, others are carried out in parts.
        let delay = in_flight.iter().map(|io| io.offset).sum::<u64>() % 4_000_000;
        for request in in_flight {
            self.submit(request);
        }
        self.world.run_for(Nanos(delay));
        self.world.kill(self.guest);
        self.world.run_for(SETTLED);
        Ok(())
    }

    fn wait_for_size(&mut self, size: u64) -> Result<(), String> {
        let guest = self.guest;
        self.world.run_until("the new size", |world| world.size(guest) == size);
        Ok(())
    }

    fn carry_out(&mut self, requests: Vec<Io>) -> Result<Vec<Payload>, String> {
        let ids: Vec<_> = requests.into_iter().map(|request| self.submit(request)).collect();
        let (guest, count) = (self.guest, ids.len());
        self.world.run_until("all answers", |world| world.guest(guest).done.len() == count);
        let mut done: Vec<Completion> = std::mem::take(&mut self.world.guest(guest).done);
        let mut payloads = Vec::new();
        for id in ids {
            let index = done.iter().position(|completion| completion.id == id);
            let index = index.ok_or("an answer to no request")?;
            let Completion { op, result, .. } = done.swap_remove(index);
            payloads.push(result.map_err(|error| format!("{op:?}: {error}"))?);
        }
        Ok(payloads)
    }

    fn manage(&mut self, order: Order) -> Result<Result<(), RbdError>, String> {
        Ok(self.world.manage(|pool| order.obey(pool)))
    }

    fn read_all(&mut self, image: &str, snapshot: Option<&str>) -> Result<Vec<u8>, String> {
        let snapshot = snapshot.map(str::to_owned);
        let reader = self.world.open_with(ImageSpec { snapshot, read_only: true, ..spec(image) });
        let size = self.world.size(reader);
        let bytes = self.world.read(reader, 0, size);
        self.world.close(reader);
        Ok(bytes)
    }

    fn check(&mut self, checked: &Checked) -> Result<(), String> {
        let header = self.world.info(checked.image);
        let named = |name| header.snapshot_named(name).map(|snapshot| snapshot.info.id);
        let snapshot = checked.snapshot.map_or(Ok(SnapId::HEAD), named);
        let snapshot = snapshot.map_err(|error| error.to_string())?;
        if header.size_at(snapshot) != Some(checked.bytes.len() as u64) {
            return Err(format!("{} has another size", header.name));
        }
        if !checked.has_map {
            return Ok(());
        }
        if !header.has_valid_object_map(snapshot) {
            return Err(format!("the object map of {} is flagged invalid", header.name));
        }
        self.world.compare_map(&header, snapshot, !checked.was_killed)
    }
}
