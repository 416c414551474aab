//! A cluster, and the image in it that all contenders use.
//!
//! The image is written completely before the first measurement, by the client here. An image that
//! the benchmark made goes away at the end, unless the user gave it a name. The benchmark does not
//! write over an image that it has not made, unless the user says so.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use fieldstone_units as units;

use super::objects::{OBJECT_BYTES, ObjectClient, ObjectLoad, names};
use super::osds::Osds;
use crate::fio::Load;
use crate::generator::{Answers, FILL, GeneratorTask, InProcess};
use crate::process::Server;
use crate::usage::run_counted;

/// What the names of images and objects of this benchmark begin with.
const OWN_PREFIX: &str = "bench-fieldstone";

/// The pool of the cluster without storage.
const NULL_POOL: &str = "bench";

/// The longest time in which the image must be filled.
const FILL_MAX: Duration = Duration::from_secs(3600);

/// The kind of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlaceKind {
    /// A cluster that the user has.
    Cluster,
    /// The cluster without storage that this program brings along: a process that answers at once.
    Null,
}

impl PlaceKind {
    /// What the names of its rows begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Cluster => "",
            Self::Null => "null/",
        }
    }

    /// Its title in reports.
    pub fn title(self) -> &'static str {
        match self {
            Self::Cluster => "the cluster",
            Self::Null => "the null cluster",
        }
    }
}

/// Where the image is, and who asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// ceph.conf.
    pub conf: PathBuf,
    /// The client's name without its type.
    pub id: String,
    /// The pool.
    pub pool: String,
    /// The image.
    pub image: String,
}

/// The cache of librbd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LibrbdCache {
    /// None: every access goes to the OSDs, as those of our images do by default.
    #[default]
    Off,
    /// One of 32 MiB, librbd's default size. Reads fill it, and librbd reads ahead for the whole
    /// run; writes go through. So it does what the default layers of our volumes do. librbd's own
    /// defaults keep no data of reads (`writearound`), and stop to read ahead after 50 MiB.
    Reads,
}

impl LibrbdCache {
    /// The options of programs with librbd.
    pub fn options(self) -> &'static str {
        match self {
            Self::Off => "--rbd_cache=false",
            Self::Reads => {
                "--rbd_cache=true --rbd_cache_policy=writethrough \
                 --rbd_readahead_disable_after_bytes=0"
            }
        }
    }
}

impl Address {
    /// The image as a target of `serve` and `embed`: without a cache, whatever ceph.conf says.
    pub fn target(&self) -> String {
        let [pool, image, conf, id] =
            [&self.pool, &self.image, &self.conf.display().to_string(), &self.id]
                .map(|text| escape(text));
        format!("ceph:{pool}/{image}:conf={conf}:id={id}:cache=none")
    }

    /// The image as `rbd` names it.
    pub fn path(&self) -> String {
        format!("{}/{}", self.pool, self.image)
    }

    /// Variables of the environment for programs with librbd: the configuration file, and the cache
    /// in the library.
    pub fn environment(&self, cache: LibrbdCache) -> [(&'static str, String); 2] {
        let own = std::env::var("CEPH_ARGS").unwrap_or_default();
        let arguments = format!("{own} {}", cache.options());
        [
            ("CEPH_CONF", self.conf.display().to_string()),
            ("CEPH_ARGS", arguments.trim_start().to_owned()),
        ]
    }

    /// The options by which the commands of this program find the cluster.
    fn options(&self) -> [String; 4] {
        ["--conf".to_owned(), self.conf.display().to_string(), "--id".to_owned(), self.id.clone()]
    }
}

/// A text as a part of a target: a colon separates parts.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace(':', "\\:")
}

/// A cluster with an image. Dropping this removes what the benchmark made.
pub struct Place {
    /// The kind of the cluster.
    pub kind: PlaceKind,
    /// Where the image is.
    pub address: Address,
    /// The part of the image that is accessed.
    pub size_bytes: u64,
    /// The OSDs.
    pub osds: Osds,
    /// The commands that made it.
    pub commands: Vec<String>,
    program: PathBuf,
    removes_image: bool,
    has_objects: bool,
    /// The process of a null cluster.
    server: Option<Server>,
}

/// How a new image is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout<'a> {
    /// The default features, all in one pool.
    Plain,
    /// The default features, with the data in another pool, which may be erasure-coded.
    DataPool(&'a str),
    /// Without an exclusive lock and what needs it: many clients may write at the same time.
    Shared,
}

impl Layout<'_> {
    /// The end of the name of an image of the benchmark's own. Images of several layouts may exist
    /// at the same time.
    fn suffix(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::DataPool(_) => "-data",
            Self::Shared => "-shared",
        }
    }

    /// The options of `rbd create`.
    fn options(self) -> Vec<String> {
        match self {
            Self::Plain => Vec::new(),
            Self::DataPool(pool) => vec!["--data-pool".to_owned(), pool.to_owned()],
            Self::Shared => vec!["--image-shared".to_owned()],
        }
    }
}

/// What the user wants of a cluster that exists.
pub struct Wanted<'a> {
    /// ceph.conf.
    pub conf: PathBuf,
    /// The client's name without its type.
    pub id: &'a str,
    /// The pool.
    pub pool: &'a str,
    /// The image; a new one without a name.
    pub image: Option<&'a str>,
    /// Write over an image that this benchmark has not made.
    pub overwrite: bool,
    /// The size of a new image, and the largest part of an old one that is accessed.
    pub size_bytes: u64,
    /// How a new image is laid out.
    pub layout: Layout<'a>,
    /// A folder with the numbers of the OSDs' processes.
    pub osd_pid_dir: Option<&'a Path>,
}

impl Place {
    /// A cluster that exists. Makes the image if there is none.
    ///
    /// # Errors
    /// The cluster cannot be reached, or the image must not be written.
    pub fn cluster(wanted: &Wanted<'_>, program: &Path) -> anyhow::Result<Self> {
        let osds = match wanted.osd_pid_dir {
            Some(folder) => Osds::of_folder(folder)?,
            None => Osds::with_conf(&wanted.conf),
        };
        let own_name = format!("{OWN_PREFIX}-{}{}", std::process::id(), wanted.layout.suffix());
        let address = Address {
            conf: wanted.conf.clone(),
            id: wanted.id.to_owned(),
            pool: wanted.pool.to_owned(),
            image: wanted.image.unwrap_or(&own_name).to_owned(),
        };
        let mut place = Self {
            kind: PlaceKind::Cluster,
            address,
            size_bytes: wanted.size_bytes,
            osds,
            commands: Vec::new(),
            program: program.to_path_buf(),
            removes_image: false,
            has_objects: false,
            server: None,
        };
        match place.size_of_image()? {
            Some(size_bytes) => {
                let path = place.address.path();
                refuse_foreign(&path, &place.address.image, wanted.overwrite)?;
                let size_bytes = size_bytes.min(wanted.size_bytes);
                place.size_bytes = size_bytes - size_bytes % OBJECT_BYTES;
                ensure!(place.size_bytes > 0, "{path} is smaller than one object of 4M");
            }
            None => {
                place.create_image(wanted.layout)?;
                place.removes_image = wanted.image.is_none();
            }
        }
        Ok(place)
    }

    fn create_image(&self, layout: Layout<'_>) -> anyhow::Result<()> {
        let size = format!("{}M", self.size_bytes >> 20);
        let (path, options) = (self.address.path(), layout.options());
        let mut words = vec!["create", "--size", &size, &path];
        words.extend(options.iter().map(String::as_str));
        self.rbd(&words).map(drop)
    }

    /// Makes another image on a cluster without storage, which takes the place of the first.
    ///
    /// # Errors
    /// The image cannot be made.
    pub fn change_image(&mut self, layout: Layout<'_>) -> anyhow::Result<()> {
        self.address.image = format!("{OWN_PREFIX}{}", layout.suffix());
        self.create_image(layout)
    }

    /// Starts a cluster without storage, whose process runs on these CPUs.
    ///
    /// # Errors
    /// It does not start.
    pub fn null(
        size_bytes: u64,
        program: &Path,
        folder: &Path,
        cpus: &[usize],
    ) -> anyhow::Result<Self> {
        let at = folder.join("null");
        let image = format!("{NULL_POOL}/image:{}M", size_bytes >> 20);
        let mut command = Command::new(program);
        command.args(["rados", "null-cluster", "--folder"]).arg(&at);
        command.args(["--pool", NULL_POOL, "--image", &image]);
        crate::process::pin(&mut command, cpus);
        let log = folder.join("null.log");
        let server = Server::spawn(command, &log, |said| said.contains("ready"))
            .context("the null cluster does not start")?;
        let address = Address {
            conf: at.join("ceph.conf"),
            id: "admin".to_owned(),
            pool: NULL_POOL.to_owned(),
            image: "image".to_owned(),
        };
        Ok(Self {
            kind: PlaceKind::Null,
            address,
            size_bytes,
            osds: Osds { pids: vec![server.pid()] },
            commands: vec![format!(
                "fieldstone rados null-cluster --folder DIR/null --pool {NULL_POOL} --image {image}"
            )],
            program: program.to_path_buf(),
            removes_image: false,
            has_objects: false,
            server: Some(server),
        })
    }

    /// Fails if the process of a null cluster has ended.
    ///
    /// # Errors
    /// It has ended; the text says why.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.server.as_mut().map_or(Ok(()), |server| server.check().context("the null cluster"))
    }

    /// Writes the whole image.
    ///
    /// # Errors
    /// A write fails.
    pub fn fill_image(&self) -> anyhow::Result<()> {
        let (target, size_bytes) = (self.address.target(), self.size_bytes);
        let task = InProcess {
            target,
            direct: false,
            cores: 1,
            size_bytes,
            load: FILL,
            seconds: None,
            fill: false,
            seed: 0,
            answers: Answers::Queue,
        };
        self.work(&GeneratorTask::Device(task))
            .with_context(|| format!("filling {}", self.address.path()))
    }

    /// Writes the objects for loads without an image.
    ///
    /// # Errors
    /// A write fails.
    pub fn fill_objects(&mut self) -> anyhow::Result<()> {
        self.has_objects = true;
        let load = self.object_load(ObjectClient::Ours { cores: 1 }, FILL, None, 0);
        self.work(&GeneratorTask::Objects(load)).context("filling the objects")
    }

    /// A load on the objects.
    pub fn object_load(
        &self,
        client: ObjectClient,
        load: Load,
        seconds: Option<f64>,
        seed: u64,
    ) -> ObjectLoad {
        ObjectLoad {
            client,
            id: self.address.id.clone(),
            conf: self.address.conf.clone(),
            pool: self.address.pool.clone(),
            prefix: self.prefix(),
            size_bytes: self.size_bytes,
            load,
            seconds,
            seed,
        }
    }

    fn prefix(&self) -> String {
        format!("{OWN_PREFIX}-{}-object", std::process::id())
    }

    fn work(&self, task: &GeneratorTask) -> anyhow::Result<()> {
        let ended = run_counted(task.command(&self.program)?, FILL_MAX)?;
        ensure!(ended.status.success(), "{}", ended.stderr.trim());
        Ok(())
    }

    /// The size of the image, or `None` if there is no such image.
    fn size_of_image(&self) -> anyhow::Result<Option<u64>> {
        let images: Vec<String> = self.rbd_json(&["ls", "--json", &self.address.pool])?;
        if !images.contains(&self.address.image) {
            return Ok(None);
        }
        let info: serde_json::Value = self.rbd_json(&["info", "--json", &self.address.path()])?;
        let size = info.get("size").and_then(serde_json::Value::as_u64);
        size.map(Some).with_context(|| format!("the size of {} is not told", self.address.path()))
    }

    fn rbd_json<T: serde::de::DeserializeOwned>(&self, words: &[&str]) -> anyhow::Result<T> {
        let text = self.rbd(words)?;
        serde_json::from_str(&text).with_context(|| format!("`rbd {}` gave {text}", words[0]))
    }

    /// Runs `fieldstone rbd …`, and gives its output.
    fn rbd(&self, words: &[&str]) -> anyhow::Result<String> {
        self.ours("rbd", words)
    }

    fn ours(&self, kind: &str, words: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.program);
        command.arg(kind).args(self.address.options()).args(words).stdin(Stdio::null());
        let output = command.output().context("cannot run this program")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{}", said.trim().trim_start_matches("fieldstone: "));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn remove(&self) {
        let tell = |what: &str, result: anyhow::Result<String>| {
            if let Err(error) = result {
                eprint_line!("fieldstone: {what} cannot be removed, remove it by hand: {error:#}");
            }
        };
        if self.has_objects {
            let names = names(&self.prefix(), self.size_bytes);
            let mut words = vec!["rm", "-p", &self.address.pool];
            words.extend(names.iter().map(String::as_str));
            tell(&format!("the objects {}.*", self.prefix()), self.ours("rados", &words));
        }
        if self.removes_image {
            let path = self.address.path();
            tell(&format!("the image {path}"), self.rbd(&["rm", &path]));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The null cluster forgets everything when it ends.
        if self.kind == PlaceKind::Cluster {
            self.remove();
        }
    }
}

/// Refuses to write over an image that this benchmark has not made.
fn refuse_foreign(path: &str, image: &str, overwrite: bool) -> anyhow::Result<()> {
    if !overwrite && !image.starts_with(OWN_PREFIX) {
        bail!(
            "{path} exists, and this benchmark would write over it; name an image that does not \
             exist, or add --overwrite if its data may be lost"
        );
    }
    Ok(())
}

/// The configuration file that the client of a cluster reads: the one that is named, or the first
/// that Ceph's commands would take.
///
/// # Errors
/// There is none.
pub fn conf(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = match (named, std::env::var_os("CEPH_CONF")) {
        (Some(path), _) => path.to_path_buf(),
        (None, Some(path)) => PathBuf::from(path),
        (None, None) => PathBuf::from("/etc/ceph/ceph.conf"),
    };
    path.canonicalize().with_context(|| {
        format!(
            "{}: no configuration of a cluster; name one with --conf or CEPH_CONF, or measure \
             without a cluster: --null",
            path.display()
        )
    })
}

/// Refuses a size that is no multiple of an object, or small.
///
/// # Errors
/// The reason.
pub fn check_size(size_bytes: u64) -> anyhow::Result<()> {
    const SMALLEST: u64 = 16 << 20;
    if size_bytes < SMALLEST || !size_bytes.is_multiple_of(OBJECT_BYTES) {
        bail!("--size must be a multiple of 4M and at least {}", units::size(SMALLEST));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_images_are_safe() {
        assert!(refuse_foreign("p/disk", "disk", false).is_err());
        assert!(refuse_foreign("p/bench", "bench", false).is_err());
        assert!(refuse_foreign("p/disk", "disk", true).is_ok());
        assert!(refuse_foreign("p/bench-fieldstone-7", "bench-fieldstone-7", false).is_ok());
    }

    #[test]
    fn a_target_carries_every_name() {
        let address = Address {
            conf: PathBuf::from("/a:b/ceph.conf"),
            id: "vm".to_owned(),
            pool: "rep".to_owned(),
            image: "x\\y".to_owned(),
        };
        assert_eq!(address.target(), "ceph:rep/x\\\\y:conf=/a\\:b/ceph.conf:id=vm:cache=none");
        assert_eq!(address.path(), "rep/x\\y");
        let environment = address.environment(LibrbdCache::Off);
        assert_eq!(environment[0].1, "/a:b/ceph.conf");
        assert!(environment[1].1.ends_with("--rbd_cache=false"));
        let [_, (_, cached)] = address.environment(LibrbdCache::Reads);
        assert!(cached.contains("--rbd_cache=true") && cached.contains("after_bytes=0"));
    }

    #[test]
    fn sizes_and_files_are_checked() {
        assert!(check_size(64 << 20).is_ok());
        for bytes in [0, 8 << 20, (64 << 20) + 4096] {
            assert!(check_size(bytes).is_err(), "{bytes}");
        }
        let missing = conf(Some(Path::new("/no/such/ceph.conf"))).expect_err("there is none");
        assert!(missing.to_string().contains("/no/such/ceph.conf"), "{missing}");
    }
}
