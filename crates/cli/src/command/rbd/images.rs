//! `rbd rm`, `rbd rename`, `rbd resize` and `rbd flatten`.

use anyhow::bail;

use super::super::ceph::CephArgs;
use super::create::parse_image_size;
use super::names::PlaceArgs;
use super::{show_on, with_pool};
use crate::progress::counting_bar;

/// Options of `rbd rm`.
#[derive(clap::Args, Debug)]
pub(super) struct RmArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// The image, as [POOL/[NAMESPACE/]]IMAGE.
    image: String,
}

/// Options of `rbd rename`.
#[derive(clap::Args, Debug)]
pub(super) struct RenameArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// The image, as [POOL/[NAMESPACE/]]IMAGE.
    image: String,
    /// Its new name, in the same pool and namespace.
    to: String,
}

/// Options of `rbd resize`.
#[derive(clap::Args, Debug)]
pub(super) struct ResizeArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// The new size, e.g. 10G; a number without a unit is in MiB.
    #[arg(long, short, value_name = "SIZE", value_parser = parse_image_size)]
    size: u64,
    /// Let the image become smaller. What is behind the new end is lost.
    #[arg(long)]
    allow_shrink: bool,
    /// The image, as [POOL/[NAMESPACE/]]IMAGE.
    image: String,
}

/// Options of `rbd flatten`.
#[derive(clap::Args, Debug)]
pub(super) struct FlattenArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// The clone, as [POOL/[NAMESPACE/]]IMAGE.
    image: String,
}

pub(super) fn remove(ceph: &CephArgs, args: &RmArgs) -> anyhow::Result<()> {
    let name = args.place.image(&args.image)?;
    let place = name.place.clone();
    with_pool(ceph, &place, |_, pool| async move {
        let bar = counting_bar("rm", "objects", 0);
        let removed = pool.remove(&name.image, &mut show_on(&bar)).await;
        bar.finish_and_clear();
        Ok(removed?)
    })
}

pub(super) fn rename(ceph: &CephArgs, args: &RenameArgs) -> anyhow::Result<()> {
    let name = args.place.image(&args.image)?;
    // A new name without a pool stays where the image is.
    let to = match args.to.contains('/') {
        true => args.place.image(&args.to)?,
        false => {
            let (pool, namespace) = (name.place.pool.clone(), name.place.namespace.clone());
            PlaceArgs::new(Some(pool), Some(namespace)).image(&args.to)?
        }
    };
    if to.place != name.place {
        bail!(
            "image {}: a new name is in the same place, and {} is not; use `rbd export` and `rbd \
             import` to copy it",
            name.path(),
            to.place.path()
        );
    }
    let place = name.place.clone();
    with_pool(ceph, &place, |_, pool| async move { Ok(pool.rename(&name.image, &to.image).await?) })
}

pub(super) fn resize(ceph: &CephArgs, args: &ResizeArgs) -> anyhow::Result<()> {
    let name = args.place.image(&args.image)?;
    let (place, size, may_shrink) = (name.place.clone(), args.size, args.allow_shrink);
    with_pool(ceph, &place, move |_, pool| async move {
        let now = pool.info(&name.image).await?.size_bytes;
        if size < now && !may_shrink {
            bail!(
                "image {}: it would shrink from {} to {} and lose what is behind the new end; if \
                 that is wanted, add --allow-shrink",
                name.path(),
                fieldstone_units::size(now),
                fieldstone_units::size(size)
            );
        }
        let bar = counting_bar("resize", "objects", 0);
        let resized = pool.resize(&name.image, size, may_shrink, &mut show_on(&bar)).await;
        bar.finish_and_clear();
        Ok(resized?)
    })
}

pub(super) fn flatten(ceph: &CephArgs, args: &FlattenArgs) -> anyhow::Result<()> {
    let name = args.place.image(&args.image)?;
    let place = name.place.clone();
    with_pool(ceph, &place, |_, pool| async move {
        let bar = counting_bar("flatten", "objects", 0);
        let flat = pool.flatten(&name.image, &mut show_on(&bar)).await;
        bar.finish_and_clear();
        Ok(flat?)
    })
}
