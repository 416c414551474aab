//! Names of images on the command line: `[POOL/[NAMESPACE/]]IMAGE[@SNAPSHOT]`, and options that
//! name the pool or the namespace instead.

use anyhow::bail;
use fieldstone_rbd::ImageSpec;

/// The pool that is meant if none is named, as in Ceph.
const DEFAULT_POOL: &str = "rbd";

/// Options that say where an image is, unless its name does.
#[derive(clap::Args, Debug, Clone, Default)]
pub(super) struct PlaceArgs {
    /// The pool, if the name of the image has none. [default: rbd]
    #[arg(long, short, value_name = "POOL")]
    pool: Option<String>,
    /// The namespace in the pool, if the name of the image has none.
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
}

/// A namespace of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The pool.
    pub pool: String,
    /// The namespace; empty for the default one.
    pub namespace: String,
}

/// An image, or a snapshot of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Where it is.
    pub place: Place,
    /// The image.
    pub image: String,
    /// The snapshot.
    pub snapshot: Option<String>,
}

impl PlaceArgs {
    /// Options that name this pool and namespace.
    pub(super) fn new(pool: Option<String>, namespace: Option<String>) -> Self {
        Self { pool, namespace }
    }

    /// The place that the options name.
    pub(super) fn place(&self) -> Place {
        Place {
            pool: self.pool.clone().unwrap_or_else(|| DEFAULT_POOL.to_owned()),
            namespace: self.namespace.clone().unwrap_or_default(),
        }
    }

    /// The place `POOL[/NAMESPACE]`.
    pub(super) fn place_named(&self, text: Option<&str>) -> anyhow::Result<Place> {
        let Some(text) = text else { return Ok(self.place()) };
        let (pool, namespace) = match text.split_once('/') {
            None => (text, None),
            Some((pool, namespace)) => (pool, Some(namespace)),
        };
        if pool.is_empty() || namespace.is_some_and(|name| name.is_empty() || name.contains('/')) {
            bail!("{text:?} is not POOL or POOL/NAMESPACE");
        }
        self.joined(text, Some(pool), namespace)
    }

    /// The image or snapshot `[POOL/[NAMESPACE/]]IMAGE[@SNAPSHOT]`.
    pub(super) fn name(&self, text: &str) -> anyhow::Result<Name> {
        let (path, snapshot) = match text.split_once('@') {
            None => (text, None),
            Some((path, snapshot)) => (path, Some(snapshot)),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [image] => (None, None, image),
            [pool, image] => (Some(pool), None, image),
            [pool, namespace, image] => (Some(pool), Some(namespace), image),
            _ => bail!("{text:?} has too many `/`; write POOL/NAMESPACE/IMAGE"),
        };
        let is_bad = |part: &str| part.is_empty() || part.contains('@');
        if parts.iter().any(|part| part.is_empty()) || snapshot.is_some_and(is_bad) {
            bail!(
                "{text:?} is not [POOL/[NAMESPACE/]]IMAGE[@SNAPSHOT]: a name is empty or has a `@`"
            );
        }
        Ok(Name {
            place: self.joined(text, pool, namespace)?,
            image: image.to_owned(),
            snapshot: snapshot.map(str::to_owned),
        })
    }

    /// An image without a snapshot.
    pub(super) fn image(&self, text: &str) -> anyhow::Result<Name> {
        let name = self.name(text)?;
        if let Some(snapshot) = &name.snapshot {
            bail!(
                "{text:?} names the snapshot {snapshot}, but this is for whole images; write {:?}",
                text.split('@').next().unwrap_or_default()
            );
        }
        Ok(name)
    }

    /// A snapshot.
    pub(super) fn snapshot(&self, text: &str) -> anyhow::Result<(Name, String)> {
        let name = self.name(text)?;
        match name.snapshot.clone() {
            Some(snapshot) => Ok((name, snapshot)),
            None => bail!("{text:?} names no snapshot; write {text}@SNAPSHOT"),
        }
    }

    fn joined(
        &self,
        text: &str,
        pool: Option<&str>,
        namespace: Option<&str>,
    ) -> anyhow::Result<Place> {
        let pick = |named: Option<&str>, option: &Option<String>, what: &str| match (named, option)
        {
            (Some(named), Some(option)) if named != option => {
                bail!("{text:?} names the {what} {named}, and --{what} names {option}; give one");
            }
            (Some(named), _) => Ok(Some(named.to_owned())),
            (None, option) => Ok(option.clone()),
        };
        Ok(Place {
            pool: pick(pool, &self.pool, "pool")?.unwrap_or_else(|| DEFAULT_POOL.to_owned()),
            namespace: pick(namespace, &self.namespace, "namespace")?.unwrap_or_default(),
        })
    }
}

impl Place {
    /// As users write it: `pool` or `pool/namespace`.
    pub(super) fn path(&self) -> String {
        match self.namespace.is_empty() {
            true => self.pool.clone(),
            false => format!("{}/{}", self.pool, self.namespace),
        }
    }
}

impl Name {
    /// What opens it, read-only.
    pub(super) fn spec(&self) -> ImageSpec {
        ImageSpec {
            pool: self.place.pool.clone(),
            namespace: self.place.namespace.clone(),
            image: self.image.clone(),
            snapshot: self.snapshot.clone(),
            read_only: true,
            ..ImageSpec::default()
        }
    }

    /// As users write it: `pool/namespace/image@snapshot`.
    pub(super) fn path(&self) -> String {
        self.spec().path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(pool: Option<&str>, namespace: Option<&str>) -> PlaceArgs {
        PlaceArgs { pool: pool.map(str::to_owned), namespace: namespace.map(str::to_owned) }
    }

    #[test]
    fn names_are_read() {
        let none = args(None, None);
        for (text, path) in [
            ("disk", "rbd/disk"),
            ("pool/disk", "pool/disk"),
            ("pool/tenant/disk", "pool/tenant/disk"),
            ("disk@monday", "rbd/disk@monday"),
            ("pool/tenant/disk@a/b", "pool/tenant/disk@a/b"),
            ("d:i.s k", "rbd/d:i.s k"),
        ] {
            assert_eq!(none.name(text).expect("a name").path(), path, "{text}");
        }
        for bad in ["", "/disk", "a/", "a//b", "a/b/c/d", "disk@", "@monday", "disk@a@b"] {
            assert!(none.name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn options_name_the_place() {
        let both = args(Some("p"), Some("n"));
        assert_eq!(both.name("disk").expect("a name").path(), "p/n/disk");
        assert_eq!(both.name("p/n/disk").expect("a name").path(), "p/n/disk");
        assert_eq!(both.name("p/disk").expect("a name").path(), "p/n/disk");
        let error = both.name("other/disk").expect_err("two pools").to_string();
        assert!(error.contains("other") && error.contains("--pool"), "{error}");
        assert_eq!(both.place().path(), "p/n");
    }

    #[test]
    fn places_are_read() {
        let none = args(None, None);
        assert_eq!(none.place_named(None).expect("a place").path(), "rbd");
        assert_eq!(none.place_named(Some("p/n")).expect("a place").path(), "p/n");
        for bad in ["", "/n", "p/", "p/n/x"] {
            assert!(none.place_named(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn snapshots_are_demanded_and_refused() {
        let none = args(None, None);
        assert!(none.snapshot("disk").is_err());
        assert_eq!(none.snapshot("disk@a").expect("a snapshot").1, "a");
        assert!(none.image("disk@a").is_err());
    }
}
