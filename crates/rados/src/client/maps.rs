//! The map of the OSDs: each epoch in order, from the changes that monitors and OSDs send.

use std::sync::Arc;

use fieldstone_crush::osdmap::{Address, Incremental, OsdMap};

use super::location;
use super::{Client, Phase};
use crate::Nanos;
use crate::encoding::EntityAddress;
use crate::errno::Errno;
use crate::message::Message;
use crate::message::osd::OsdMaps;

impl Client {
    /// Maps came from a monitor or an OSD.
    ///
    /// # Errors
    /// The message cannot be read, or a map in it. Then the sender breaks the protocol, or is newer
    /// than this crate.
    pub(super) fn maps_came(&mut self, message: &Message, now: Nanos) -> Result<(), String> {
        let maps = OsdMaps::decode(message).map_err(|error| error.to_string())?;
        let known = self.monitors.fsid();
        if known.is_some_and(|known| known != maps.fsid) {
            return Err("the maps are those of another cluster".to_owned());
        }
        loop {
            let epoch = self.map.as_ref().map_or(0, |map| map.epoch);
            let Some(next) = next_map(self.map.as_ref(), &maps)? else { break };
            debug_assert!(next.epoch > epoch, "each map is newer");
            self.take_map(next, now);
        }
        if self.map.as_ref().is_some_and(|map| map.epoch < maps.newest) {
            // The sender has more than fits into one message, or left a gap.
            self.subscribe(0);
        }
        Ok(())
    }

    fn take_map(&mut self, map: Arc<OsdMap>, now: Nanos) {
        let epoch = map.epoch;
        // Most maps leave the tree as it is, and then share it with the map before.
        let is_same = self.map.as_ref().is_some_and(|old| Arc::ptr_eq(&old.crush, &map.crush));
        if !is_same {
            let place = &self.options.crush_location;
            self.objecter.set_distance(location::distances(&map, place));
        }
        self.map = Some(Arc::clone(&map));
        self.monitors.have_osdmap(u64::from(epoch));
        if self.is_blocklisted(&map) {
            tracing::error!("the cluster has blocklisted this client: another one took over");
            self.objecter.shut_out(Errno::ESHUTDOWN);
        }
        self.objecter.map_changed(map, now);
        if self.phase == Phase::Connecting {
            self.phase = Phase::Serving;
        }
        self.answer_epoch(epoch);
    }
}

impl Client {
    /// True if the map shuts this client out.
    fn is_blocklisted(&self, map: &OsdMap) -> bool {
        let EntityAddress { nonce, socket, .. } = self.links.own_address();
        // Before a peer has told it, the address is not known.
        let known = socket.filter(|socket| !socket.ip().is_unspecified());
        known.is_some_and(|socket| map.is_blocklisted(&Address::msgr2(socket, nonce)))
    }
}

/// The map after `old` that can be made from a message: the next epoch if possible.
fn next_map(old: Option<&Arc<OsdMap>>, maps: &OsdMaps) -> Result<Option<Arc<OsdMap>>, String> {
    let epoch = old.map_or(0, |map| map.epoch);
    let wrong = |epoch: u32, error: &dyn std::fmt::Display| format!("map {epoch}: {error}");
    if let Some(old) = old
        && let Some((next, bytes)) =
            maps.incremental.iter().find(|(next, _)| Some(*next) == epoch.checked_add(1))
    {
        let change = Incremental::decode(bytes).map_err(|error| wrong(*next, &error))?;
        let mut map = OsdMap::clone(old);
        map.apply(&change).map_err(|error| wrong(*next, &error))?;
        return Ok(Some(Arc::new(map)));
    }
    // A client without a map takes the newest. One with a map loses as few epochs as possible.
    let full = maps.full.iter().filter(|(full, _)| *full > epoch);
    let full = match old {
        None => full.max_by_key(|(full, _)| *full),
        Some(_) => full.min_by_key(|(full, _)| *full),
    };
    let Some((next, bytes)) = full else { return Ok(None) };
    let map = OsdMap::decode(bytes).map_err(|error| wrong(*next, &error))?;
    if map.epoch != *next || map.fsid.0 != maps.fsid {
        return Err(wrong(*next, &format!("it is map {} of cluster {}", map.epoch, map.fsid)));
    }
    Ok(Some(Arc::new(map)))
}
