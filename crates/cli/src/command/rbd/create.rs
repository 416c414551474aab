//! `rbd create` and `rbd clone`, and the options of new images.

use anyhow::bail;
use fieldstone_rbd::format::Features;
use fieldstone_rbd::header::Header;
use fieldstone_rbd::pool::CreateOptions;
use fieldstone_units as units;

use super::super::ceph::CephArgs;
use super::names::PlaceArgs;
use super::{with_context, with_pool};

/// Features of a new image that are not set by name: they follow from other options, or the OSDs
/// set them.
const IMPLICIT: Features = Features(
    Features::STRIPING.0
        | Features::DATA_POOL.0
        | Features::OPERATIONS.0
        | Features::MIGRATING.0
        | Features::NON_PRIMARY.0,
);
/// Features with which only one client can write.
const NOT_SHARED: Features = Features(
    Features::EXCLUSIVE_LOCK.0
        | Features::OBJECT_MAP.0
        | Features::FAST_DIFF.0
        | Features::JOURNALING.0,
);

/// Options of a new image.
#[derive(clap::Args, Debug, Clone, Default)]
pub(super) struct LayoutArgs {
    /// The size of an object: a power of two from 4K to 32M. [default: 4M]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, conflicts_with = "order")]
    object_size: Option<u64>,
    /// The size of an object, as a power of two: 22 is 4M.
    #[arg(long, value_name = "BITS", hide = true)]
    order: Option<u8>,
    /// The features: layering, exclusive-lock, object-map, fast-diff, deep-flatten. May be
    /// repeated, or a list with commas. [default: all of these]
    #[arg(long, value_name = "FEATURE", value_delimiter = ',', value_parser = parse_feature)]
    image_feature: Vec<Features>,
    /// Many clients may write: no exclusive lock, and nothing that needs it.
    #[arg(long)]
    image_shared: bool,
    /// The stripe unit; it divides the size of objects.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, requires = "stripe_count")]
    stripe_unit: Option<u64>,
    /// The number of objects over which stripe units go in turn.
    #[arg(long, value_name = "COUNT", requires = "stripe_unit")]
    stripe_count: Option<u64>,
    /// Another pool for the data. It may be erasure-coded.
    #[arg(long, value_name = "POOL")]
    data_pool: Option<String>,
}

/// Options of `rbd create`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    layout: LayoutArgs,
    /// The size, e.g. 10G; a number without a unit is in MiB.
    #[arg(long, short, value_name = "SIZE", value_parser = parse_image_size)]
    size: u64,
    /// The new image, as [POOL/[NAMESPACE/]]IMAGE.
    image: String,
}

/// Options of `rbd clone`.
#[derive(clap::Args, Debug)]
pub(super) struct CloneArgs {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    layout: LayoutArgs,
    /// The pool of the clone, if its name has none. [default: rbd]
    #[arg(long, value_name = "POOL")]
    dest_pool: Option<String>,
    /// The namespace of the clone, if its name has none.
    #[arg(long, value_name = "NAME")]
    dest_namespace: Option<String>,
    /// The snapshot, as [POOL/[NAMESPACE/]]IMAGE@SNAPSHOT.
    snapshot: String,
    /// The new image, as [POOL/[NAMESPACE/]]IMAGE.
    image: String,
}

fn parse_feature(text: &str) -> Result<Features, String> {
    match Features::named(text) {
        Some(feature) => Ok(feature),
        None => Err(format!(
            "{text:?} is no feature; there are {}",
            Features::CREATABLE.names().join(", ")
        )),
    }
}

/// Reads the size of an image. As in Ceph, a number without a unit is in MiB.
pub(super) fn parse_image_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    match text.parse::<u64>() {
        Ok(_) => units::parse_size(&format!("{text}M")),
        Err(_) => units::parse_size(text),
    }
}

impl LayoutArgs {
    /// The options of an image of this size. What is not given is as in `parent`, or as Ceph has
    /// it.
    pub(super) fn options(
        &self,
        size_bytes: u64,
        parent: Option<&Header>,
    ) -> anyhow::Result<CreateOptions> {
        let mut options = CreateOptions::new(size_bytes);
        if let Some(parent) = parent {
            options.order = parent.layout.order();
            options.features = parent.features.without(IMPLICIT);
        }
        match (self.object_size, self.order) {
            (Some(bytes), _) if !bytes.is_power_of_two() => {
                bail!("--object-size {bytes}: it must be a power of two from 4K to 32M");
            }
            (Some(bytes), _) => options.order = bytes.trailing_zeros() as u8,
            (None, Some(order)) => options.order = order,
            (None, None) => {}
        }
        if !self.image_feature.is_empty() {
            let none = Features::default();
            options.features = self.image_feature.iter().fold(none, |all, one| all.with(*one));
        }
        if self.image_shared {
            options.features = options.features.without(NOT_SHARED);
        }
        options.stripe_unit = self.stripe_unit.unwrap_or(0);
        options.stripe_count = self.stripe_count.unwrap_or(0);
        options.data_pool.clone_from(&self.data_pool);
        Ok(options)
    }
}

pub(super) fn create(ceph: &CephArgs, args: &Args) -> anyhow::Result<()> {
    let name = args.place.image(&args.image)?;
    let options = args.layout.options(args.size, None)?;
    let place = name.place.clone();
    with_pool(ceph, &place, |_, pool| async move {
        pool.create(&name.image, &options).await?;
        Ok(())
    })
}

pub(super) fn clone(ceph: &CephArgs, args: &CloneArgs) -> anyhow::Result<()> {
    let (parent, snapshot) = args.place.snapshot(&args.snapshot)?;
    let destination = PlaceArgs::new(args.dest_pool.clone(), args.dest_namespace.clone());
    let child = destination.image(&args.image)?;
    let layout = args.layout.clone();
    with_context(ceph, |context| async move {
        let from = context.pool(&parent.place).await?;
        let to = context.pool(&child.place).await?;
        let header = from.info(&parent.image).await?;
        let options = layout.options(0, Some(&header))?;
        to.clone_image(&from, &parent.image, &snapshot, &child.image, &options).await?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn options(words: &[&str]) -> anyhow::Result<CreateOptions> {
        let line = ["create", "image"].iter().chain(words);
        let line = Line::try_parse_from(line)?;
        line.args.layout.options(line.args.size, None)
    }

    #[test]
    fn sizes_are_in_mib_unless_told_otherwise() {
        for (text, bytes) in [("10", 10 << 20), ("10G", 10 << 30), ("512B", 512), ("1.5M", 3 << 19)]
        {
            assert_eq!(parse_image_size(text), Ok(bytes), "{text}");
        }
        assert!(parse_image_size("much").is_err());
    }

    #[test]
    fn the_defaults_are_ceph_s() {
        assert_eq!(options(&["--size", "1G"]).expect("good"), CreateOptions::new(1 << 30));
        assert!(options(&[]).is_err(), "there is no default size");
    }

    #[test]
    fn options_change_the_layout() {
        let words = [
            "-s",
            "64",
            "--object-size",
            "1M",
            "--stripe-unit",
            "64K",
            "--stripe-count",
            "4",
            "--data-pool",
            "ec",
            "--image-feature",
            "layering,fast-diff",
        ];
        let options = options(&words).expect("good");
        assert_eq!((options.order, options.stripe_unit, options.stripe_count), (20, 65536, 4));
        assert_eq!(options.data_pool.as_deref(), Some("ec"));
        assert_eq!(options.features, Features::LAYERING.with(Features::FAST_DIFF));
    }

    #[test]
    fn senseless_options_are_refused() {
        for words in [
            &["-s", "1", "--object-size", "3M"][..],
            &["-s", "1", "--stripe-unit", "64K"],
            &["-s", "1", "--image-feature", "speed"],
            &["-s", "1", "--order", "22", "--object-size", "4M"],
        ] {
            assert!(options(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn shared_images_have_no_lock() {
        let shared = options(&["-s", "1", "--image-shared"]).expect("good");
        assert_eq!(shared.features.names(), ["layering", "deep-flatten"]);
    }
}
