//! Settings from all sources together.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const CONF: &str = "[global]\n\
    fsid = 1234\n\
    mon host = [v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0] 10.0.0.2\n\
    rados_osd_op_timeout = 30\n\
    rbd_cache = true\n\
    run_dir = /run/$cluster\n\
    admin_socket = $run_dir/$name.$pid.asok\n\
    layer = global\n\
    [client]\n\
    layer = client\n\
    rbd_cache = false\n\
    [client.west]\n\
    layer = client.west\n\
    keyring = /k/$id\n\
    crush_location = host=$host root=default\n";

fn sources(conf: &str, command_line: &[&str], ceph_args: &str) -> Sources {
    let command_line = Arguments::parse(command_line, "the command line").expect("sound");
    let environment = Environment::read(|name| (name == "CEPH_ARGS").then(|| ceph_args.to_owned()));
    Sources {
        command_line,
        environment: environment.expect("sound"),
        conf: Some(ConfFile::parse("/etc/ceph/ceph.conf", conf).expect("sound")),
        host: "box".into(),
        pid: 42,
    }
}

fn settings(conf: &str, command_line: &[&str], ceph_args: &str) -> Settings {
    Settings::new(&sources(conf, command_line, ceph_args)).expect("sound")
}

#[test]
fn defaults_are_those_of_ceph() {
    let settings = settings("mon_host = 10.0.0.1", &[], "");
    assert_eq!(settings.entity.to_string(), "client.admin");
    assert_eq!(settings.monitor_modes, [Mode::Secure, Mode::Crc]);
    assert_eq!(settings.service_modes, [Mode::Crc, Mode::Secure]);
    assert_eq!(settings.methods, [2, 1]);
    assert_eq!((settings.monitor_timeout, settings.osd_timeout), (None, None));
    assert_eq!(settings.read_policy, ReadPolicy::Primary);
    assert!(settings.crush_location.is_empty());
    let paths = [
        "/etc/ceph/ceph.client.admin.keyring",
        "/etc/ceph/ceph.keyring",
        "/etc/ceph/keyring",
        "/etc/ceph/keyring.bin",
    ];
    let paths = paths.map(str::to_owned).to_vec();
    assert_eq!(settings.key_source(), Ok(KeySource::Keyrings(paths)));
}

#[test]
fn the_nearest_source_wins() {
    let layer =
        |line: &[&str], args: &str| settings(CONF, line, args).option("layer").map(str::to_owned);
    assert_eq!(layer(&[], "").as_deref(), Some("client"));
    assert_eq!(layer(&["--id", "west"], "").as_deref(), Some("client.west"));
    assert_eq!(layer(&[], "--id west").as_deref(), Some("client.west"));
    assert_eq!(layer(&[], "--id west --layer=args").as_deref(), Some("args"));
    assert_eq!(layer(&["--layer", "line"], "--id west --layer=args").as_deref(), Some("line"));
    assert_eq!(layer(&["-n", "osd.3"], "").as_deref(), Some("global"));
    let both = settings(CONF, &["--id", "west"], "--id east");
    assert_eq!(both.entity, Entity::client("west"));
}

#[test]
fn reads_a_whole_file() {
    let settings = settings(CONF, &["--id", "west"], "--ms-client-mode secure");
    let monitors: Vec<String> = settings.monitors.iter().map(ToString::to_string).collect();
    assert_eq!(monitors, ["10.0.0.1:3300", "10.0.0.2:3300"]);
    assert_eq!(settings.osd_timeout, Some(Duration::from_secs(30)));
    assert_eq!(settings.service_modes, [Mode::Secure]);
    assert_eq!(settings.option("admin socket"), Some("/run/ceph/client.west.42.asok"));
    assert_eq!(settings.option("unknown"), None);
    assert_eq!(settings.flag("rbd-cache"), Ok(Some(false)));
    assert_eq!(settings.flag("unknown"), Ok(None));
    assert!(settings.flag("layer").is_err());
    let place = [("host", "box"), ("root", "default")];
    let place = place.map(|(kind, name)| (kind.to_owned(), name.to_owned()));
    assert_eq!(settings.crush_location, place);
    assert_eq!(settings.key_source(), Ok(KeySource::Keyrings(vec!["/k/west".into()])));
    assert!(settings.options().any(|option| option == ("fsid", "1234")));
}

#[test]
fn places_of_the_key() {
    let key = "AQCcuQlr2rZeHxAAbMge7JV2zRjNUGnfBGi9Cg==";
    let conf = format!("mon_host = a\n[client.admin]\nkeyfile = /f/$name\nkey = {key}\n");
    let source = settings(&conf, &[], "").key_source();
    assert!(matches!(source, Ok(KeySource::Key(found)) if found.to_base64() == key));
    let source = settings(&conf, &["--key="], "").key_source();
    assert_eq!(source, Ok(KeySource::KeyFile("/f/client.admin".into())));
    let error = settings(&conf, &["--key=secret"], "").key_source().expect_err("no key");
    assert_eq!(error.to_string(), "the command line: the key is not base64");
    let mut sources = sources("mon_host = a\nkeyring = /conf", &[], "");
    let keyring = |sources: &Sources| Settings::new(sources).expect("sound").key_source();
    let one = |path: &str| Ok(KeySource::Keyrings(vec![path.to_owned()]));
    assert_eq!(keyring(&sources), one("/conf"));
    sources.environment.keyring = Some("/variable".into());
    assert_eq!(keyring(&sources), one("/variable"));
    sources.environment.arguments.options.insert("keyring".into(), "/args".into());
    assert_eq!(keyring(&sources), one("/args"));
}

#[test]
fn places_of_the_file() {
    let mut sources = Sources::default();
    assert_eq!(sources.conf_paths().0, ["/etc/ceph/ceph.conf", "ceph.conf"]);
    sources.environment.home = Some("/home/a".into());
    sources.environment.arguments.cluster = Some("west".into());
    let paths = ["/etc/ceph/west.conf", "/home/a/.ceph/west.conf", "west.conf"];
    assert_eq!(sources.conf_paths(), (paths.map(str::to_owned).to_vec(), false));
    sources.environment.conf = Some("/a/$cluster.conf, /b".into());
    assert_eq!(sources.conf_paths(), (vec!["/a/west.conf".into(), "/b".into()], true));
    sources.command_line.conf = Some("/c".into());
    assert_eq!(sources.conf_paths(), (vec!["/c".into()], true));
}

#[test]
fn errors_say_where() {
    let error = |conf: &str, line: &[&str]| {
        Settings::new(&sources(conf, line, "")).expect_err("wrong").to_string()
    };
    assert!(error("", &[]).starts_with("settings: no monitor is named"));
    assert_eq!(
        error("\nmon_host = 10.0.0.1:6789", &[]),
        "/etc/ceph/ceph.conf:2: mon_host: 10.0.0.1:6789 speaks messenger 1 only; \
         messenger 2 is needed (port 3300)"
    );
    assert_eq!(
        error("mon_host = a\nms_client_mode = plain", &[]),
        "/etc/ceph/ceph.conf:2: the option ms_client_mode cannot have the value `plain`"
    );
    assert_eq!(
        error("mon_host = a", &["--rados-osd-op-timeout=soon"]),
        "the command line: the option rados_osd_op_timeout cannot have the value `soon`"
    );
    assert!(error("mon_host = a\nauth_client_required = gss", &[]).contains("`gss`"));
}

#[test]
fn variables_that_refer_to_themselves_end() {
    let many = "$a".repeat(1000);
    let settings = settings(&format!("mon_host = h\na = {many}\nb = $c\nc = $b\n"), &[], "");
    let text = settings.option("a").expect("set");
    assert!(text.len() < 200_000, "{}", text.len());
    assert!(matches!(settings.option("b"), Some("$b" | "$c")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn never_panics(text in r"(mon_host|keyring|key|crush|\$name|[=\n\[\] ;,:.0-9a-c]){0,30}") {
        if let Ok(conf) = ConfFile::parse("c", &text) {
            let sources = Sources { conf: Some(conf), ..Sources::default() };
            if let Ok(settings) = Settings::new(&sources) {
                let _ = settings.key_source();
            }
        }
    }
}

#[test]
fn debug_does_not_show_the_key() {
    let secret = "AQBSdFhlAAAAABAAAAAAAAAAAAAAAAAAAAAAAA==";
    let conf = format!("[global]\nmon_host = 10.0.0.1\nkey = {secret}\nlayer = shown\n");
    let option = format!("--key={secret}");
    for (conf, line) in [(&*conf, &[][..]), (CONF, &[&*option][..])] {
        let sources = sources(conf, line, &line.concat());
        let settings = Settings::new(&sources).expect("sound");
        assert_eq!(settings.option("key"), Some(secret));
        let text = format!("{settings:?} {settings:#?} {sources:?} {:?}", settings.flag("key"));
        assert!(!text.contains(secret), "{text}");
        assert!(text.contains("layer") && text.contains("mon_host"), "{text}");
    }
}
