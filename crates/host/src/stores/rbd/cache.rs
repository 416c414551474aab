//! The caches in front of an image, as the target and ceph.conf ask for them.
//!
//! The option `cache=` of a target names a mode. Without it, ceph.conf decides, if it says
//! anything: `rbd_cache` and `rbd_cache_policy` name the mode as librbd reads them. If neither is
//! set, there is no cache; librbd would then write around. The other options of librbd give the
//! numbers, with librbd's defaults.
//!
//! ```text
//!   none           neither layer
//!   writethrough   `cache`: reads are kept
//!   writearound    `write-cache:policy=around`: writes are answered at once
//!   writeback      `cache` and `write-cache:policy=back`: both, and writes are merged
//! ```
//!
//! The layers keep data only while this client has the image's lock, and of snapshots.

use fieldstone_block::layers::LayerOptions;
use fieldstone_rados::settings::Settings;

/// How an image is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageCache {
    /// Not at all.
    None,
    /// What was read is kept.
    Writethrough,
    /// Writes are answered at once, and sent at once.
    Writearound,
    /// Writes are answered at once, and sent later. What was read or written is kept.
    Writeback,
}

const MODES: [(&str, ImageCache); 4] = [
    ("none", ImageCache::None),
    ("writethrough", ImageCache::Writethrough),
    ("writearound", ImageCache::Writearound),
    ("writeback", ImageCache::Writeback),
];

impl ImageCache {
    /// The mode of this name.
    ///
    /// # Errors
    /// There is none; the text names those that there are.
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = MODES.iter().find(|(known, _)| *known == name);
        found.map(|(_, mode)| *mode).ok_or_else(|| {
            let names: Vec<&str> = MODES.iter().map(|(name, _)| *name).collect();
            format!("{name:?} is no cache; there are {}", names.join(", "))
        })
    }

    /// The mode that ceph.conf asks for.
    fn of(settings: &Settings) -> Result<Self, String> {
        let is_on = settings.flag("rbd_cache").map_err(|error| error.to_string())?;
        match (is_on, settings.option("rbd_cache_policy").map(str::trim)) {
            (Some(false), _) | (None, None) => Ok(Self::None),
            (Some(true), None) => Ok(Self::Writearound),
            (_, Some("none")) => Err("rbd_cache_policy: \"none\" is no policy; rbd_cache = false \
                                      switches the cache off"
                .to_owned()),
            (_, Some(policy)) => {
                Self::parse(policy).map_err(|error| format!("rbd_cache_policy: {error}"))
            }
        }
    }
}

/// A size of ceph.conf in bytes.
fn size(settings: Option<&Settings>, name: &str, default: u64) -> Result<u64, String> {
    let text = settings.and_then(|settings| settings.option(name));
    // Ceph also writes `32_M`.
    let parsed = text.map(|text| fieldstone_units::parse_size(&text.trim().replace('_', "")));
    parsed.unwrap_or(Ok(default)).map_err(|error| format!("{name}: {error}"))
}

/// A time of ceph.conf, in milliseconds.
fn milliseconds(settings: Option<&Settings>, name: &str, default: u64) -> Result<u64, String> {
    let Some(text) = settings.and_then(|settings| settings.option(name)) else {
        return Ok(default);
    };
    match text.trim().parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok((seconds * 1e3) as u64),
        _ => Err(format!("{name}: {text:?} is no number of seconds up to a day")),
    }
}

/// The caches of an image. `asked`: the mode that the target names. `settings`: ceph.conf, if it
/// can be read; if it cannot, the opening of the image says why.
///
/// # Errors
/// An option of ceph.conf has a value that it cannot have.
pub fn layers(
    asked: Option<ImageCache>,
    settings: Option<&Settings>,
) -> Result<LayerOptions, String> {
    let mode = match (asked, settings) {
        (Some(mode), _) => mode,
        (None, Some(settings)) => ImageCache::of(settings)?,
        (None, None) => ImageCache::None,
    };
    let size_bytes = size(settings, "rbd_cache_size", 32 << 20)?;
    let max_dirty = size(settings, "rbd_cache_max_dirty", 24 << 20)?;
    let target_dirty = size(settings, "rbd_cache_target_dirty", 16 << 20)?;
    let max_age_ms = milliseconds(settings, "rbd_cache_max_dirty_age", 1_000)?;
    let until_flush = match settings {
        Some(settings) => settings.flag("rbd_cache_writethrough_until_flush"),
        None => Ok(None),
    };
    let until_flush = until_flush.map_err(|error| error.to_string())?.unwrap_or(true);
    let until_flush = if until_flush { "on" } else { "off" };
    let no_cache = || "cache:off".to_owned();
    let cache = |allocates| format!("cache:capacity={size_bytes},write-allocate={allocates}");
    let texts = match mode {
        ImageCache::None => vec![no_cache()],
        // As librbd does: without dirty bytes, a write cache has nothing to do.
        ImageCache::Writearound if max_dirty == 0 => vec![no_cache()],
        ImageCache::Writeback if max_dirty == 0 => vec![cache("on")],
        ImageCache::Writethrough => vec![cache("on")],
        ImageCache::Writearound => vec![
            no_cache(),
            format!("write-cache:policy=around,max-dirty={max_dirty},until-flush={until_flush}"),
        ],
        ImageCache::Writeback => vec![
            cache("on"),
            format!(
                "write-cache:policy=back,max-dirty={max_dirty},target-dirty={target_dirty},\
                 max-age={max_age_ms}ms,until-flush={until_flush}"
            ),
        ],
    };
    let mut layers = LayerOptions::default();
    for text in texts {
        layers.add(&text).map_err(|error| error.to_string())?;
    }
    Ok(layers)
}

#[cfg(test)]
mod tests {
    use fieldstone_rados::settings::{ConfFile, Sources};

    use super::*;

    fn conf(lines: &str) -> Settings {
        let text = format!("[global]\nmon_host = [v2:127.0.0.1:3300/0]\n{lines}\n");
        let conf = Some(ConfFile::parse("ceph.conf", &text).unwrap());
        Settings::new(&Sources { conf, ..Sources::default() }).unwrap()
    }

    /// The names of the layers, and the options of the write cache.
    fn made(asked: Option<ImageCache>, lines: &str) -> (Vec<&'static str>, String) {
        let layers = layers(asked, Some(&conf(lines))).unwrap().make().unwrap();
        let caches = layers.iter().filter(|layer| layer.keeps_data());
        let write = layers.iter().find(|layer| layer.name() == "write-cache");
        let text = write.map(|layer| {
            layer.options().iter().map(|(name, value)| format!("{name}={value} ")).collect()
        });
        (caches.map(|layer| layer.name()).collect(), text.unwrap_or_default())
    }

    #[test]
    fn ceph_conf_chooses_the_mode_as_librbd_reads_it() {
        assert_eq!(made(None, "").0, [""; 0]);
        assert_eq!(made(None, "rbd_cache = false\nrbd_cache_policy = writeback").0, [""; 0]);
        assert_eq!(made(None, "rbd cache = true").0, ["write-cache"]);
        assert_eq!(made(None, "rbd_cache_policy = writethrough").0, ["cache"]);
        let (names, options) = made(None, "rbd_cache_policy = writeback");
        assert_eq!(names, ["cache", "write-cache"]);
        assert_eq!(
            options,
            "policy=back max-dirty=24M target-dirty=16M max-age=1s max-merge=1M until-flush=on "
        );
        let lines = "rbd_cache_policy = writeback\nrbd_cache_max_dirty = 8_M\n\
                     rbd_cache_target_dirty = 4M\nrbd_cache_max_dirty_age = 0.25\n\
                     rbd_cache_writethrough_until_flush = false";
        let expected =
            "policy=back max-dirty=8M target-dirty=4M max-age=250ms max-merge=1M until-flush=off ";
        assert_eq!(made(None, lines).1, expected);
        let lines = "rbd_cache_policy = writeback\nrbd_cache_max_dirty = 0";
        assert_eq!(made(None, lines).0, ["cache"]);
    }

    #[test]
    fn the_target_wins_over_ceph_conf() {
        let writeback = "rbd_cache_policy = writeback";
        assert_eq!(made(Some(ImageCache::None), writeback).0, [""; 0]);
        assert_eq!(made(Some(ImageCache::Writearound), writeback).0, ["write-cache"]);
        assert!(layers(None, None).unwrap().leaves_out("cache"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (lines, word) in [
            ("rbd_cache_policy = fast", "rbd_cache_policy"),
            ("rbd_cache_policy = none", "rbd_cache = false"),
            ("rbd_cache = maybe", "rbd_cache"),
            ("rbd_cache_size = much", "rbd_cache_size"),
            ("rbd_cache_max_dirty_age = old", "rbd_cache_max_dirty_age"),
        ] {
            let error = layers(None, Some(&conf(lines))).unwrap_err();
            assert!(error.contains(word), "{lines}: {error}");
        }
        assert!(ImageCache::parse("fast").unwrap_err().contains("writearound"));
    }
}
