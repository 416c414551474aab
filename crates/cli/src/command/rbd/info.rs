//! `rbd info` and `rbd status`, and the words with which images are described.

use fieldstone_rados::cluster::SnapId;
use fieldstone_rados::encoding::Time;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rados::op::results::Watchers;
use fieldstone_rbd::RbdError;
use fieldstone_rbd::find;
use fieldstone_rbd::format::class::{ParentSpec, Protection};
use fieldstone_rbd::format::lock::LockKind;
use fieldstone_rbd::format::{Features, features, names};
use fieldstone_rbd::header::Header;
use fieldstone_rbd::store::Store;
use fieldstone_units as units;
use serde_json::{Value, json};

use super::super::ceph::CephArgs;
use super::names::{Name, PlaceArgs};
use super::{Context, with_pool};

/// Options of `rbd info`.
#[derive(clap::Args, Debug)]
pub(super) struct InfoArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// The image or snapshot, as [POOL/[NAMESPACE/]]IMAGE[@SNAPSHOT].
    image: String,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Options of `rbd status`.
#[derive(clap::Args, Debug)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// The image, as [POOL/[NAMESPACE/]]IMAGE.
    image: String,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// The names of the parent of an image.
#[derive(Clone, Debug)]
pub(super) struct ParentName {
    spec: ParentSpec,
    pool: String,
    image: String,
    snapshot: String,
    /// The image has no name any more.
    is_in_trash: bool,
}

impl ParentName {
    /// Finds the names of the parent. What is gone is shown by its number.
    pub(super) async fn of(context: &Context, header: &Header) -> anyhow::Result<Option<Self>> {
        let Some(spec) = header.parent.clone() else { return Ok(None) };
        let pools = context.cluster.pools().await?;
        let pool = pools.iter().find(|pool| pool.id == spec.pool);
        let store = Store::new(&context.cluster, spec.pool, &spec.namespace);
        let pool = pool.map_or_else(|| format!("(pool {})", spec.pool.0), |pool| pool.name.clone());
        let missing = |error: &RbdError| matches!(error, RbdError::NoImage(_));
        let (image, is_in_trash) = match find::name_of(&store, &spec.image).await {
            Ok(image) => (image, false),
            Err(error) if missing(&error) => (format!("(image {})", spec.image), true),
            Err(error) => return Err(error.into()),
        };
        let snapshot = match Header::load(&store, &spec.image, &image).await {
            Ok(parent) => parent.snapshot(spec.snapshot).map(|snapshot| snapshot.info.name.clone()),
            Err(error) if missing(&error) => None,
            Err(error) => return Err(error.into()),
        };
        let snapshot = snapshot.unwrap_or_else(|| format!("(snapshot {})", spec.snapshot.0));
        Ok(Some(Self { spec, pool, image, snapshot, is_in_trash }))
    }

    /// As users write it: `pool/namespace/image@snapshot`.
    pub(super) fn path(&self) -> String {
        let namespace = match self.spec.namespace.as_str() {
            "" => String::new(),
            namespace => format!("{namespace}/"),
        };
        format!("{}/{namespace}{}@{}", self.pool, self.image, self.snapshot)
    }

    /// As in the output of Ceph's command.
    pub(super) fn json(&self) -> Value {
        json!({
            "pool": self.pool, "pool_namespace": self.spec.namespace, "image": self.image,
            "id": self.spec.image, "snapshot": self.snapshot, "trash": self.is_in_trash,
        })
    }
}

/// `excl` or `shr` if the image is locked.
pub(super) fn lock_word(header: &Header) -> &'static str {
    match header.lock.kind {
        _ if header.lock.lockers.is_empty() => "",
        LockKind::Shared => "shr",
        _ => "excl",
    }
}

/// `yes` if the snapshot is protected.
pub(super) fn protection_word(protection: Protection) -> &'static str {
    match protection {
        Protection::Unprotected => "",
        Protection::Unprotecting => "ending",
        Protection::Protected => "yes",
    }
}

/// The size of what is named, and its number.
pub(super) fn state_of(header: &Header, name: &Name) -> anyhow::Result<(SnapId, u64)> {
    match &name.snapshot {
        None => Ok((SnapId::HEAD, header.size_bytes)),
        Some(snapshot) => {
            let snapshot = header.snapshot_named(snapshot)?;
            Ok((snapshot.info.id, snapshot.info.size_bytes))
        }
    }
}

/// What `rbd info` shows.
struct Details {
    name: Name,
    header: Header,
    state: SnapId,
    size_bytes: u64,
    flags: u64,
    data_pool: Option<String>,
    parent: Option<(ParentName, u64)>,
}

pub(super) fn info(ceph: &CephArgs, args: &InfoArgs) -> anyhow::Result<()> {
    let name = args.place.name(&args.image)?;
    let place = name.place.clone();
    let details = with_pool(ceph, &place, |context, pool| async move {
        let header = pool.info(&name.image).await?;
        let (state, size_bytes) = state_of(&header, &name)?;
        let pools = context.cluster.pools().await?;
        let data_pool = header.data_pool.map(|id| {
            let pool = pools.iter().find(|pool| pool.id == id);
            pool.map_or_else(|| format!("(pool {})", id.0), |pool| pool.name.clone())
        });
        let parent = match header.parent_at(state) {
            None => None,
            Some((_, overlap)) => {
                ParentName::of(&context, &header).await?.map(|parent| (parent, overlap))
            }
        };
        let flags = header.snapshot(state).map_or(header.flags, |snapshot| snapshot.flags);
        Ok(Details { name, header, state, size_bytes, flags, data_pool, parent })
    })?;
    if args.json {
        print_line!("{}", details.json());
    } else {
        print_text!("{}", details.text());
    }
    Ok(())
}

impl Details {
    fn protection(&self) -> Option<Protection> {
        self.header.snapshot(self.state).map(|snapshot| snapshot.protection)
    }

    fn json(&self) -> Value {
        let Header { layout, features, .. } = &self.header;
        let mut value = json!({
            "name": self.header.name,
            "id": self.header.id,
            "size": self.size_bytes,
            "objects": layout.objects(self.size_bytes),
            "order": layout.order(),
            "object_size": layout.object_bytes(),
            "snapshot_count": self.header.snapshots.len(),
            "block_name_prefix": self.header.prefix,
            "format": 2,
            "features": features.names(),
            "op_features": op_feature_names(self.header.op_features),
            "flags": flag_names(self.flags),
            "create_timestamp": utc(self.header.created),
            "modify_timestamp": utc(self.header.modified),
        });
        let mut set = |key: &str, field: Value| value[key] = field;
        if let Some(pool) = &self.data_pool {
            set("data_pool", json!(pool));
        }
        if let Some(protection) = self.protection() {
            set("protected", json!(protection != Protection::Unprotected));
        }
        if let Some((parent, overlap)) = &self.parent {
            let mut parent = parent.json();
            parent["overlap"] = json!(overlap);
            set("parent", parent);
        }
        if features.has(Features::STRIPING) {
            set("stripe_unit", json!(layout.stripe_unit()));
            set("stripe_count", json!(layout.stripe_count()));
        }
        value
    }

    fn text(&self) -> String {
        let Header { layout, features, .. } = &self.header;
        let mut lines = vec![
            format!("image {}", self.name.path()),
            format!(
                "size {} in {} objects",
                units::size(self.size_bytes),
                layout.objects(self.size_bytes)
            ),
            format!("order {} ({} objects)", layout.order(), units::size(layout.object_bytes())),
            format!("snapshot_count: {}", self.header.snapshots.len()),
            format!("id: {}", self.header.id),
        ];
        if let Some(pool) = &self.data_pool {
            lines.push(format!("data_pool: {pool}"));
        }
        lines.extend([
            format!("block_name_prefix: {}", self.header.prefix),
            "format: 2".to_owned(),
            format!("features: {}", features.names().join(", ")),
            format!("op_features: {}", op_feature_names(self.header.op_features).join(", ")),
            format!("flags: {}", flag_names(self.flags).join(", ")),
            format!("create_timestamp: {}", utc(self.header.created)),
            format!("modify_timestamp: {}", utc(self.header.modified)),
        ]);
        if let Some(protection) = self.protection() {
            lines.push(format!("protected: {}", protection != Protection::Unprotected));
        }
        if let Some((parent, overlap)) = &self.parent {
            lines.push(format!("parent: {}", parent.path()));
            lines.push(format!("overlap: {}", units::size(*overlap)));
        }
        if features.has(Features::STRIPING) {
            lines.push(format!("stripe unit: {}", units::size(layout.stripe_unit())));
            lines.push(format!("stripe count: {}", layout.stripe_count()));
        }
        let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
        lines.join("\n\t") + "\n"
    }
}

/// Names of the features of operations, as Ceph has them.
fn op_feature_names(bits: u64) -> Vec<String> {
    const SNAPSHOTS_IN_TRASH: u64 = 4;
    named_bits(
        bits,
        &[
            (features::OP_FEATURE_CLONE_PARENT, "clone-parent"),
            (features::OP_FEATURE_CLONE_CHILD, "clone-child"),
            (SNAPSHOTS_IN_TRASH, "snap-trash"),
        ],
    )
}

/// Names of the flags, as Ceph has them.
fn flag_names(bits: u64) -> Vec<String> {
    named_bits(
        bits,
        &[
            (features::FLAG_OBJECT_MAP_INVALID, "object map invalid"),
            (features::FLAG_FAST_DIFF_INVALID, "fast diff invalid"),
        ],
    )
}

fn named_bits(bits: u64, known: &[(u64, &str)]) -> Vec<String> {
    let mut names: Vec<String> = known
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, name)| (*name).to_owned())
        .collect();
    let rest = known.iter().fold(bits, |rest, (bit, _)| rest & !bit);
    if rest != 0 {
        names.push(format!("unknown {rest:#x}"));
    }
    names
}

/// A time as `2026-11-27 17:49:17 UTC`; empty if the cluster does not know it.
pub(super) fn utc(time: Time) -> String {
    if time == Time::default() {
        return String::new();
    }
    let (days, second) = (time.seconds / 86_400, time.seconds % 86_400);
    let mut year = 1970;
    let mut day = days;
    let is_leap =
        |year: u32| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    while day >= 365 + u32::from(is_leap(year)) {
        day -= 365 + u32::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u32::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", day + 1)
}

pub(super) fn status(ceph: &CephArgs, args: &StatusArgs) -> anyhow::Result<()> {
    let name = args.place.image(&args.image)?;
    let place = name.place.clone();
    let (header, watchers) = with_pool(ceph, &place, |context, pool| async move {
        let header = pool.info(&name.image).await?;
        let store = context.store(&pool, &name.place);
        let mut ops = ObjectOps::new();
        ops.list_watchers();
        let reply = store.send(&names::header(&header.id), ops).await;
        let failed = |errno| RbdError::cluster(&name.path(), "listing who has it open", errno);
        let reply = reply.map_err(failed)?;
        let data = reply.ops.first().map(|op| op.data.clone()).unwrap_or_default();
        Ok((header, Watchers::decode(&data)?.0))
    })?;
    if args.json {
        let watchers: Vec<Value> = watchers
            .iter()
            .map(|info| {
                json!({
                    "address": info.address.to_string(), "client": info.watcher.client,
                    "cookie": info.watcher.cookie,
                })
            })
            .collect();
        let lockers = header.lock.lockers.iter().map(|locker| {
            json!({
                "locker": locker.client.to_string(), "cookie": locker.cookie,
                "address": locker.address.to_string(),
            })
        });
        let lockers: Vec<Value> = lockers.collect();
        print_line!("{}", json!({ "watchers": watchers, "lock": lockers }));
        return Ok(());
    }
    match watchers.is_empty() {
        true => print_line!("Watchers: none"),
        false => print_line!("Watchers:"),
    }
    for info in watchers {
        let (client, cookie) = (info.watcher.client, info.watcher.cookie);
        print_line!("\twatcher={} client.{client} cookie={cookie}", info.address);
    }
    for locker in &header.lock.lockers {
        print_line!("Lock: {} {} {}", locker.client, locker.cookie, locker.address);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (seconds, text) in [
            (1, "1970-01-01 00:00:01 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_795_801_757, "2026-11-27 17:49:17 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(Time { seconds, nanos: 0 }), text);
        }
        assert_eq!(utc(Time::default()), "");
    }

    #[test]
    fn bits_have_names() {
        assert_eq!(op_feature_names(3), ["clone-parent", "clone-child"]);
        assert_eq!(flag_names(1 | 8), ["object map invalid", "unknown 0x8"]);
        assert!(flag_names(0).is_empty());
    }
}
