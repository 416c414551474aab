//! `rbd du`: how much space images and snapshots use.
//!
//! As in Ceph, an object counts with all the bytes of the image that it can hold, and for each
//! state of the image those objects count that changed since the snapshot before.

use anyhow::bail;
use fieldstone_bench::table::Table;
use fieldstone_rados::cluster::SnapId;
use fieldstone_rbd::RbdError;
use fieldstone_rbd::format::{ObjectMap, ObjectState};
use fieldstone_rbd::pool::Pool;
use fieldstone_units as units;

use super::super::ceph::CephArgs;
use super::names::{Place, PlaceArgs};
use super::objects::{Objects, Versions};
use super::{Context, show_on, with_pool};
use crate::progress::counting_bar;

/// Options of `rbd du`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// The image or snapshot, as [POOL/[NAMESPACE/]]IMAGE[@SNAPSHOT]. [default: all images of the
    /// pool]
    image: Option<String>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// The use of one state of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Usage {
    image: String,
    id: String,
    /// Number and name; `None` for the present state.
    snapshot: Option<(SnapId, String)>,
    provisioned_bytes: u64,
    used_bytes: u64,
}

pub(super) fn run(ceph: &CephArgs, args: &Args) -> anyhow::Result<()> {
    let name = args.image.as_deref().map(|image| args.place.name(image)).transpose()?;
    let place = name.as_ref().map_or_else(|| args.place.place(), |name| name.place.clone());
    let (at, image) = (place.clone(), name.as_ref().map(|name| name.image.clone()));
    let mut rows = with_pool(ceph, &place, |context, pool| async move {
        let is_one = image.is_some();
        let images = match image {
            Some(image) => vec![image],
            None => pool.list().await?,
        };
        let mut rows = Vec::new();
        for image in images {
            match usage_of(&context, &pool, &at, &image).await {
                Ok(states) => rows.extend(states),
                // It was removed meanwhile.
                Err(error) if !is_one && is_missing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(rows)
    })?;
    let is_pool = name.is_none();
    if let Some(snapshot) = name.and_then(|name| name.snapshot) {
        rows.retain(|row| row.snapshot.as_ref().is_some_and(|(_, name)| *name == snapshot));
        if rows.is_empty() {
            bail!("image {} has no snapshot {snapshot}", args.image.as_deref().unwrap_or_default());
        }
    }
    if args.json {
        print_json(&rows, is_pool);
    } else {
        print_table(&rows);
    }
    Ok(())
}

fn is_missing(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(RbdError::NoImage(_)))
}

async fn usage_of(
    context: &Context,
    pool: &Pool,
    place: &Place,
    image: &str,
) -> anyhow::Result<Vec<Usage>> {
    let header = pool.info(image).await?;
    let path = format!("{}/{image}", place.path());
    let objects = Objects { header, store: context.store(pool, place), path };
    let states = objects.states();
    let sizes: Vec<u64> =
        states.iter().map(|&state| objects.header.size_at(state).unwrap_or(0)).collect();
    let used = match objects.maps(&states).await? {
        Some(maps) => used_by_maps(&objects, &maps, &sizes),
        None => {
            let mut used = vec![0; states.len()];
            let bar = counting_bar("du", "objects", 0);
            let add = |object, versions: &Versions| {
                for (index, bytes) in used.iter_mut().enumerate() {
                    let is_new = index == 0 || versions[index - 1] != versions[index];
                    if versions[index].is_some() && is_new {
                        *bytes += objects.bytes_in(object, sizes[index]);
                    }
                }
            };
            let asked = objects.each_history(&states, add, show_on(&bar)).await;
            bar.finish_and_clear();
            asked?;
            used
        }
    };
    let rows = states.iter().zip(sizes).zip(used).map(|((&state, size), used)| Usage {
        image: image.to_owned(),
        id: objects.header.id.clone(),
        snapshot: objects.header.snapshot(state).map(|snap| (state, snap.info.name.clone())),
        provisioned_bytes: size,
        used_bytes: used,
    });
    Ok(rows.collect())
}

fn used_by_maps(objects: &Objects, maps: &[ObjectMap], sizes: &[u64]) -> Vec<u64> {
    let used = maps.iter().zip(sizes).enumerate().map(|(index, (map, &size))| {
        let counts = |&object: &u64| match map.get(object) {
            ObjectState::Nonexistent => false,
            ObjectState::ExistsClean => index == 0,
            ObjectState::Exists | ObjectState::Pending => true,
        };
        (0..map.len()).filter(counts).map(|object| objects.bytes_in(object, size)).sum()
    });
    used.collect()
}

/// Sums of the sizes of images, and of what is used.
fn totals(rows: &[Usage]) -> (u64, u64) {
    let present = rows.iter().filter(|row| row.snapshot.is_none());
    let provisioned = present.map(|row| row.provisioned_bytes).sum();
    (provisioned, rows.iter().map(|row| row.used_bytes).sum())
}

/// As Ceph's command, with sums only for a whole pool.
fn print_json(rows: &[Usage], with_totals: bool) {
    let images: Vec<_> = rows.iter().map(usage_json).collect();
    let mut all = serde_json::json!({ "images": images });
    if with_totals {
        let (provisioned, used) = totals(rows);
        all["total_provisioned_size"] = provisioned.into();
        all["total_used_size"] = used.into();
    }
    print_line!("{all}");
}

fn print_table(rows: &[Usage]) {
    let (provisioned, used) = totals(rows);
    let mut table = Table::new(&["NAME", "PROVISIONED", "USED"]);
    let mut row = |name: String, provisioned, used| {
        table.row(vec![name, units::size(provisioned), units::size(used)]);
    };
    for usage in rows {
        let name = match &usage.snapshot {
            Some((_, snapshot)) => format!("{}@{snapshot}", usage.image),
            None => usage.image.clone(),
        };
        row(name, usage.provisioned_bytes, usage.used_bytes);
    }
    if rows.len() > 1 {
        row("<TOTAL>".to_owned(), provisioned, used);
    }
    if !rows.is_empty() {
        print_text!("{}", table.text());
    }
}

fn usage_json(usage: &Usage) -> serde_json::Value {
    let mut value = serde_json::json!({
        "name": usage.image, "id": usage.id, "provisioned_size": usage.provisioned_bytes,
        "used_size": usage.used_bytes,
    });
    if let Some((id, name)) = &usage.snapshot {
        value["snapshot"] = serde_json::json!(name);
        value["snapshot_id"] = serde_json::json!(id.0);
    }
    value
}
