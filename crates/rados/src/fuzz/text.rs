//! Texts of users: files and options.
//!
//! An input: u8 what the text is, and the text.

use crate::auth::Entity;
use crate::settings::{Arguments, ConfFile, Environment, Settings, Sources, keyring, monitors};

/// A configuration file, and options.
const CONF: u8 = 0;
/// A keyring.
const KEYRING: u8 = 1;
/// A list of monitors.
const MONITORS: u8 = 2;
/// The words of a command line, and the variable `CEPH_ARGS`.
const WORDS: u8 = 3;

/// Reads a text as what the first byte says. True if it makes sense.
///
/// # Panics
/// If a property does not hold: a text of a user gives an error or a value. This is the finding.
pub fn text(input: &[u8]) -> bool {
    let Some((&kind, rest)) = input.split_first() else { return false };
    let text = String::from_utf8_lossy(rest);
    let mut sources = Sources { host: "host".into(), pid: 7, ..Sources::default() };
    match kind % 4 {
        CONF => {
            let Ok(conf) = ConfFile::parse("ceph.conf", &text) else { return false };
            for section in conf.sections() {
                assert!(conf.options(section).all(|(option, _)| !option.is_empty()));
            }
            sources.conf = Some(conf);
        }
        KEYRING => {
            return keyring::find("keyring", &text, &Entity::client("admin")).is_ok();
        }
        MONITORS => return monitors::parse(&text).is_ok(),
        _ => {
            let words: Vec<&str> = text.split_whitespace().collect();
            let Ok(arguments) = Arguments::parse(&words, "the command line") else { return false };
            sources.command_line = arguments;
            let variable = |name: &str| (name == "CEPH_ARGS").then(|| text.to_string());
            let Ok(environment) = Environment::read(variable) else { return false };
            sources.environment = environment;
        }
    }
    let _ = (sources.conf_paths(), sources.entity(), sources.cluster());
    let Ok(settings) = Settings::new(&sources) else { return false };
    for (option, _) in settings.options() {
        let _ = settings.flag(option);
    }
    settings.key_source().is_ok()
}

/// Valid inputs for [`text()`].
#[must_use]
pub fn text_seeds() -> Vec<Vec<u8>> {
    let key = "AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw==";
    let conf = format!(
        "# a comment\n[global]\nfsid = 07070707-0707-0707-0707-070707070707\n\
         mon host = [v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0], 10.0.0.2 ; two\n\
         keyring = /etc/ceph/$cluster.$name.keyring,\\\n  \"/etc/a;b\"\n\
         [client]\nrados osd op timeout = 30\nms_client_mode = secure crc\n\
         rbd_read_from_replica_policy = balance\ncrush_location = host=a rack=b\n\
         [client.admin]\nkey = {key}\nadmin_socket = ${{run_dir}}/$pid.asok\n"
    );
    let keyring = format!("[client.admin]\n\tkey = {key}\n\tcaps mon = \"allow *\"\n");
    let words = "--id admin --conf /etc/ceph/ceph.conf -m 10.0.0.1:3300 --keyring=/a --rbd-cache";
    let monitors = "v2:10.0.0.1:3300/0, [v2:[::1]:3300/0,v1:[::1]:6789/0] mon.example:3300";
    [(CONF, &*conf), (KEYRING, &*keyring), (MONITORS, monitors), (WORDS, words)]
        .map(|(kind, text)| [&[kind], text.as_bytes()].concat())
        .into()
}
