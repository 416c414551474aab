//! Steps that change images and snapshots, and those that compare whole ones.

use super::member::{Member, Past};
use super::{Carrier, Checked, Course, Order, ROW_MAX, Random, SNAPSHOTS_MAX, same};

/// The snapshot from which the next image of the row was cloned.
const BASE: &str = "base";

impl<C: Carrier> Course<'_, C> {
    pub(super) fn resize(&mut self, random: &mut Random) -> Result<(), String> {
        let size = self.draw_size(random);
        self.log(format!("gets {size} bytes, had {}", self.open().size()));
        self.order(Order::Resize(self.open().name.clone(), size))?;
        self.open_mut().resize(size);
        self.counts.resizes += 1;
        self.carrier.wait_for_size(size)
    }

    pub(super) fn take_snapshot(&mut self, _: &mut Random) -> Result<(), String> {
        if self.open().snapshots.len() >= SNAPSHOTS_MAX {
            return Ok(());
        }
        let snapshot = self.open_mut().new_snapshot_name();
        self.snapshot_named(&snapshot)
    }

    fn snapshot_named(&mut self, snapshot: &str) -> Result<(), String> {
        self.log(format!("snapshot {snapshot}"));
        self.order(Order::Snapshot(self.open().name.clone(), snapshot.to_owned()))?;
        self.open_mut().snapshot(snapshot.to_owned());
        self.counts.snapshots += 1;
        Ok(())
    }

    /// The index of a snapshot of the open image, if it has any.
    fn any_snapshot(&self, random: &mut Random) -> Option<usize> {
        let count = self.open().snapshots.len() as u64;
        (count > 0).then(|| random.below(count) as usize)
    }

    pub(super) fn remove_snapshot(&mut self, random: &mut Random) -> Result<(), String> {
        let Some(index) = self.any_snapshot(random) else { return Ok(()) };
        let Past { name, is_protected, .. } = self.open().snapshots[index].clone();
        self.log(format!("removes snapshot {name}"));
        let order = Order::RemoveSnapshot(self.open().name.clone(), name.clone());
        if is_protected || name == BASE {
            return self.refused(order);
        }
        self.order(order)?;
        self.open_mut().snapshots.remove(index);
        self.drop_parents()
    }

    pub(super) fn protect(&mut self, random: &mut Random) -> Result<(), String> {
        let Some(index) = self.any_snapshot(random) else { return Ok(()) };
        let Past { name, is_protected, .. } = self.open().snapshots[index].clone();
        self.log(format!("protection of {name} becomes {}", !is_protected));
        let image = self.open().name.clone();
        let order = if is_protected { Order::Unprotect } else { Order::Protect };
        self.order(order(image, name))?;
        self.open_mut().snapshots[index].is_protected = !is_protected;
        Ok(())
    }

    pub(super) fn roll_back(&mut self, random: &mut Random) -> Result<(), String> {
        let Some(index) = self.any_snapshot(random) else { return Ok(()) };
        let past = self.open().snapshots[index].clone();
        self.log(format!("rolls back to {}", past.name));
        let order = Order::Rollback(self.open().name.clone(), past.name);
        // Of an object that only the parent has, the present state would see less.
        let overlap = self.open().overlap.unwrap_or(0);
        if past.overlap.is_some_and(|of_snapshot| of_snapshot > overlap) {
            return self.refused(order);
        }
        self.order(order)?;
        let size = past.bytes.len() as u64;
        self.open_mut().resize(size);
        self.open_mut().bytes = past.bytes;
        self.counts.rollbacks += 1;
        self.carrier.wait_for_size(size)
    }

    pub(super) fn compare_snapshot(&mut self, random: &mut Random) -> Result<(), String> {
        let Some(index) = self.any_snapshot(random) else { return Ok(()) };
        let name = self.open().snapshots[index].name.clone();
        self.log(format!("compares snapshot {name}"));
        self.compare(self.at, Some(index))
    }

    /// Compares an image, or a snapshot of it, through a reader of its own.
    fn compare(&mut self, image: usize, snapshot: Option<usize>) -> Result<(), String> {
        let member = &self.row[image];
        let past = snapshot.map(|index| &member.snapshots[index]);
        let name = past.map(|past| past.name.as_str());
        let expected = past.map_or(&member.bytes, |past| &past.bytes);
        let found = self.carrier.read_all(&member.name, name)?;
        self.counts.operations += 1;
        self.counts.compared_bytes += found.len() as u64;
        let what = format!("{}@{}", member.name, name.unwrap_or(""));
        same(&what, 0, &found, expected)
    }

    /// Compares an image and its snapshots, and lets the carrier check them.
    pub(super) fn check(&mut self, image: usize) -> Result<(), String> {
        let snapshots = self.row[image].snapshots.len();
        for snapshot in (0..snapshots).map(Some).chain([None]) {
            self.compare(image, snapshot)?;
            let member = &self.row[image];
            let past = snapshot.map(|index| &member.snapshots[index]);
            let checked = Checked {
                image: &member.name,
                snapshot: past.map(|past| past.name.as_str()),
                bytes: past.map_or(&member.bytes, |past| &past.bytes),
                has_map: member.has(fieldstone_rbd::format::Features::OBJECT_MAP),
                was_killed: member.was_killed,
            };
            self.carrier.check(&checked)?;
        }
        Ok(())
    }

    pub(super) fn check_one(&mut self, random: &mut Random) -> Result<(), String> {
        let image = random.below(self.row.len() as u64) as usize;
        self.log(format!("checks {}", self.row[image].name));
        self.check(image)
    }

    /// The course goes on with a clone of the last image.
    pub(super) fn clone_open(&mut self, random: &mut Random) -> Result<(), String> {
        if !self.is_last() {
            return Ok(());
        }
        if self.row.len() >= ROW_MAX {
            return self.flatten();
        }
        let options = self.draw_options(random);
        self.snapshot_named(BASE)?;
        let parent = self.open().name.clone();
        let child = self.new_name();
        self.log(format!("{child} is a clone, {options:?}"));
        self.order(Order::Clone {
            parent,
            snapshot: BASE.to_owned(),
            child: child.clone(),
            options: options.clone(),
        })?;
        self.counts.clones += 1;
        let (bytes, size) = (self.open().bytes.clone(), self.open().size());
        self.row.push(Member::new(child, bytes, Some(size), options));
        self.go_to(self.row.len() - 1)
    }

    fn go_to(&mut self, image: usize) -> Result<(), String> {
        self.carrier.close()?;
        self.at = image;
        let name = self.open().name.clone();
        self.carrier.open(&name)
    }

    pub(super) fn go_elsewhere(&mut self, random: &mut Random) -> Result<(), String> {
        // The last one is the deepest, and the most interesting.
        let last = self.row.len() - 1;
        let image = if random.percent(60) { last } else { random.below(last as u64 + 1) as usize };
        self.log(format!("goes to {}", self.row[image].name));
        self.go_to(image)
    }

    pub(super) fn reopen(&mut self) -> Result<(), String> {
        self.log("is opened again");
        self.counts.operations += 1;
        self.go_to(self.at)
    }

    pub(super) fn flatten(&mut self) -> Result<(), String> {
        self.log("is flattened");
        let order = Order::Flatten(self.open().name.clone());
        if self.open().overlap.is_none() {
            return self.refused(order);
        }
        self.order(order)?;
        self.open_mut().flatten();
        self.counts.flattened += 1;
        if self.row.len() >= ROW_MAX && self.open().needs_parent() && self.is_last() {
            // Without deep-flatten, the snapshots keep the row long.
            while let Some(past) = self.open().snapshots.first().cloned() {
                let image = self.open().name.clone();
                if past.is_protected {
                    self.order(Order::Unprotect(image.clone(), past.name.clone()))?;
                }
                self.order(Order::RemoveSnapshot(image, past.name))?;
                self.open_mut().snapshots.remove(0);
            }
        }
        self.drop_parents()
    }

    /// If the open image needs its parent no more, the images before it are removed.
    fn drop_parents(&mut self) -> Result<(), String> {
        if self.at == 0 || self.open().needs_parent() {
            return Ok(());
        }
        let count = self.at;
        self.log(format!("{count} images before it are removed"));
        self.remove_before(count)
    }

    /// Compares and removes the first `count` images. The image behind them is not their child any
    /// more.
    pub(super) fn remove_before(&mut self, count: usize) -> Result<(), String> {
        for image in (0..count).rev() {
            self.check(image)?;
            let name = self.row[image].name.clone();
            if !self.row[image].snapshots.is_empty() {
                self.refused(Order::Remove(name.clone()))?;
            }
            for past in std::mem::take(&mut self.row[image].snapshots) {
                if past.is_protected {
                    self.order(Order::Unprotect(name.clone(), past.name.clone()))?;
                }
                self.order(Order::RemoveSnapshot(name.clone(), past.name))?;
            }
            self.order(Order::Remove(name))?;
        }
        self.row.drain(..count);
        self.at = self.at.saturating_sub(count);
        Ok(())
    }

    /// What cannot be done is refused, and changes nothing.
    pub(super) fn ask_what_is_refused(&mut self, random: &mut Random) -> Result<(), String> {
        let image = self.open().name.clone();
        let order = match random.below(4) {
            0 => Order::Remove(image),
            1 => Order::Create(image, self.draw_options(random)),
            2 => Order::RemoveSnapshot(image, "nothing".to_owned()),
            _ => match self.open().snapshots.first() {
                Some(past) => Order::Snapshot(image, past.name.clone()),
                None => Order::Rollback(image, "nothing".to_owned()),
            },
        };
        self.log(format!("asks for {order:?}"));
        self.refused(order)
    }
}
