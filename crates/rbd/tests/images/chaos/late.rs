//! Requests have a time limit at times, and the OSDs of some objects are slow for one client, or
//! cannot be reached: its writes fail, and are executed later or never. Meanwhile the same client
//! and others write, and the slow client loses its watch, is closed or dies.

use fieldstone_block::{Nanos, Op};
use fieldstone_cluster_model::ClientHandle;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::SnapId;
use fieldstone_rbd::Phase;
use fieldstone_rbd::format::names;
use rand::Rng;

use super::{Chaos, open, run_all};

impl Chaos {
    /// Slow OSDs for one client, until they have executed all that waits for them.
    fn slow_round(&mut self) {
        self.quiesce();
        let guest = self.any_guest();
        let limit = self.random.random_range(50..2_000);
        self.world.model.set_time_limit(Some(Nanos::from_ms(limit)));
        (self.is_limited, self.has_failures) = (true, true);
        let handle = self.world.guest(guest).handle.clone();
        let slow = self.slow_objects();
        for (pool, name) in &slow {
            match self.random.random_ratio(1, 3) {
                true => handle.cut_off(*pool, name),
                false => handle.hold(*pool, name),
            }
        }
        let loses_watch = self.random.random_ratio(1, 5);
        if loses_watch {
            self.world.end_watches(guest);
        }
        for _ in 0..self.random.random_range(2..8) {
            match self.random.random_range(0..6) {
                0 => self.change(Op::Trim),
                1 => self.read(),
                _ => self.change(Op::Write),
            }
        }
        self.pass(3 * limit);
        match self.random.random_range(0..6) {
            0 => self.close_slow(guest),
            1 => self.kill_slow(guest),
            _ => {}
        }
        for _ in 0..self.random.random_range(1..6) {
            self.change(Op::Write);
            let pause = self.random.random_range(1..4_000);
            self.pass(pause);
        }
        self.let_go(&handle, &slow);
        if loses_watch && self.live.contains(&guest) {
            // Others may have taken it for dead. Nobody else is shut out while it lives.
            self.pass(5_000);
            if !matches!(self.world.guest(guest).image.phase(), Phase::Open) {
                self.kill_slow(guest);
            }
        }
        self.world.model.set_time_limit(None);
        self.is_limited = false;
        for _ in 0..3 {
            self.change(Op::Write);
        }
        // Late writes of a client that lives come to an end, and the lock is given up.
        self.quiesce();
        self.pass(20_000);
        for guest in self.live.clone() {
            let phase = self.world.guest(guest).image.phase();
            assert_eq!(phase, Phase::Open, "seed {}: guest {guest}", self.seed);
        }
    }

    fn pass(&mut self, ms: u64) {
        self.world.run_for(Nanos::from_ms(ms));
        self.harvest();
    }

    /// Some data objects, and now and then the header or the object map.
    fn slow_objects(&mut self) -> Vec<(PoolId, String)> {
        let header = self.world.info("vm");
        let data = header.data_pool.unwrap_or(PoolId(1));
        let mut slow = Vec::new();
        for _ in 0..self.random.random_range(1..5) {
            let number = self.random.random_range(0..header.objects().max(1));
            slow.push((data, names::data(&header.prefix, number)));
        }
        if self.random.random_ratio(1, 3) {
            slow.push((PoolId(1), names::header(&header.id)));
        }
        if self.random.random_ratio(1, 6) {
            slow.push((PoolId(1), names::object_map(&header.id, SnapId::HEAD)));
        }
        slow
    }

    fn let_go(&mut self, handle: &ClientHandle, slow: &[(PoolId, String)]) {
        slow.iter().for_each(|(pool, name)| handle.let_go(*pool, name));
    }

    /// The slow client is closed: its late writes are still under way.
    fn close_slow(&mut self, guest: usize) {
        self.world.close(guest);
        self.replace(guest);
    }

    /// The slow client dies.
    fn kill_slow(&mut self, guest: usize) {
        self.world.kill(guest);
        self.replace(guest);
    }

    /// Another client comes in the place of one that is gone.
    fn replace(&mut self, guest: usize) {
        self.pending.retain(|pending| pending.guest != guest);
        self.live.retain(|&other| other != guest);
        let next = open(&mut self.world, self.is_exclusive);
        self.live.push(next);
    }
}

#[test]
fn what_is_acknowledged_is_not_lost_by_late_writes() {
    run_all(|seed| {
        let mut chaos = Chaos::new(seed);
        // Without the lock, nothing keeps late writes from those of others.
        if !chaos.has_lock || chaos.is_exclusive {
            return;
        }
        for _ in 0..8 {
            for _ in 0..5 {
                chaos.act();
                chaos.world.step(chaos.world.model.now());
                chaos.harvest();
            }
            chaos.slow_round();
        }
        chaos.run(0);
    });
}
