//! Clients against servers: both sides of cephx of this crate.

use bytes::Bytes;
use proptest::prelude::*;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

use super::server::KeyServer;
use super::*;
use crate::encoding::{EntityKind, Time};

const BOTH: [Mode; 2] = [Mode::Secure, Mode::Crc];

fn at(seconds: u32) -> Time {
    Time { seconds, nanos: 0 }
}

/// A cluster that knows client.admin, and the client's credentials.
fn cluster() -> (KeyServer, Credentials) {
    cluster_with(KeyKind::Aes128)
}

/// The same, with keys of this kind.
fn cluster_with(kind: KeyKind) -> (KeyServer, Credentials) {
    let server = KeyServer::with_keys([1; 32], kind);
    let key = server.create_entity(Entity::client("admin"));
    let credentials = Credentials::new(Entity::client("admin"), Some(key), [2; 32]);
    credentials.set_wall_clock(at(1_000_000));
    (server, credentials)
}

/// Carries messages between both sides until one of them ends. `damage` may change each payload;
/// it gets the number of the payload.
fn shake_hands_damaged(
    client: &mut dyn ClientAuth,
    server: &mut dyn ServerAuth,
    mut damage: impl FnMut(usize, Bytes) -> Bytes,
) -> Result<(AuthDone, AuthDone, Mode), AuthError> {
    let mut request = client.begin()?;
    request.payload = damage(0, request.payload);
    let mut answer = server.begin(&request);
    for step in 0..4 {
        answer = match answer {
            ServerAnswer::More(payload) => {
                let reply = client.more(damage(2 * step + 1, payload))?;
                server.more(damage(2 * step + 2, reply))
            }
            ServerAnswer::Done { global_id, mode, payload, done } => {
                let ours = client.done(global_id, mode, damage(2 * step + 1, payload))?;
                return Ok((ours, done, mode));
            }
            ServerAnswer::BadMethod { errno, methods, modes } => {
                let modes: Vec<u32> = modes.into_iter().map(|mode| mode as u32).collect();
                return Err(client.refused(-errno, &methods, &modes));
            }
        };
    }
    panic!("the handshake does not end");
}

fn shake_hands(
    client: &mut dyn ClientAuth,
    server: &mut dyn ServerAuth,
) -> Result<(AuthDone, AuthDone, Mode), AuthError> {
    shake_hands_damaged(client, server, |_, payload| payload)
}

fn log_in(server: &KeyServer, credentials: &Credentials) -> Result<AuthDone, AuthError> {
    let mut client = credentials.monitor_auth(&BOTH);
    let (ours, theirs, _) = shake_hands(&mut *client, &mut *server.monitor_auth())?;
    client.commit();
    assert!(ours == theirs);
    Ok(ours)
}

fn reach_osd(server: &KeyServer, credentials: &Credentials) -> Result<AuthDone, AuthError> {
    let mut client = credentials.service_auth(EntityKind::Osd, &BOTH)?;
    let shown = credentials.ticket_blob(EntityKind::Osd).expect("there is a ticket");
    let mut osd = server.service_auth(EntityKind::Osd);
    let result = shake_hands(&mut *client, &mut *osd);
    if result.as_ref().is_err_and(|error| error.kind == AuthErrorKind::OldTicket) {
        credentials.ticket_refused(EntityKind::Osd, &shown);
    }
    let (ours, theirs, _) = result?;
    assert!(ours == theirs);
    Ok(ours)
}

fn renew(server: &KeyServer, credentials: &Credentials) -> Result<(), AuthError> {
    let payload = credentials.begin_renewal().expect("something to renew");
    let (result, payload) = server.renew(credentials.global_id(), payload);
    credentials.finish_renewal(result, payload)
}

fn error(result: Result<AuthDone, AuthError>) -> String {
    result.map(drop).expect_err("it has to fail").text
}

#[test]
fn a_client_reaches_monitor_and_services() {
    for (kind, key_len) in [(KeyKind::Aes128, 16), (KeyKind::Aes256, 32)] {
        reach_all(kind, key_len);
    }
}

fn reach_all(kind: KeyKind, key_len: usize) {
    let (server, credentials) = cluster_with(kind);
    assert!(!credentials.has_ticket(EntityKind::Osd));
    let no_ticket = credentials.service_auth(EntityKind::Osd, &BOTH).err().expect("no ticket");
    assert_eq!(no_ticket.text, "client.admin has no ticket for the service osd");
    let done = log_in(&server, &credentials).expect("admin may");
    assert_eq!((done.session_key.len(), done.connection_secret.len()), (key_len, 64));
    assert_eq!(credentials.global_id(), 4100);
    assert!(credentials.has_ticket(EntityKind::Osd) && credentials.has_ticket(EntityKind::Manager));
    let osd = reach_osd(&server, &credentials).expect("admin may");
    assert_eq!((osd.session_key.len(), osd.connection_secret.len()), (key_len, 64));
    assert_ne!(osd.session_key, done.session_key);
    let other = reach_osd(&server, &credentials).expect("admin may");
    assert_eq!(osd.session_key, other.session_key);
    assert_ne!(osd.connection_secret, other.connection_secret);
}

#[test]
fn old_keys_and_new_keys_in_one_cluster() {
    // While a cluster's keys are replaced, the client's key and those of tickets have other kinds.
    for (theirs, ours) in [(KeyKind::Aes256, KeyKind::Aes128), (KeyKind::Aes128, KeyKind::Aes256)] {
        let server = KeyServer::with_keys([1; 32], theirs);
        let key = CryptoKey::generate_kind(ours, &mut ChaCha20Rng::from_seed([6; 32]));
        let entity = Entity::client("admin");
        server.add_entity(entity.clone(), key.clone());
        let credentials = Credentials::new(entity, Some(key), [2; 32]);
        credentials.set_wall_clock(at(1_000_000));
        for _ in 0..2 {
            log_in(&server, &credentials).expect("admin may");
            reach_osd(&server, &credentials).expect("admin may");
            renew(&server, &credentials).expect("renewed");
        }
    }
}

#[test]
fn the_first_common_mode_of_the_client_counts() {
    let (server, credentials) = cluster();
    for (offered, taken, expected) in [
        (&[Mode::Crc, Mode::Secure][..], &BOTH[..], Some(Mode::Crc)),
        (&[Mode::Secure], &BOTH, Some(Mode::Secure)),
        (&[Mode::Secure, Mode::Crc], &[Mode::Crc], Some(Mode::Crc)),
        (&[Mode::Secure], &[Mode::Crc], None),
        (&[], &BOTH, None),
    ] {
        server.set_modes(taken);
        let mut client = credentials.monitor_auth(offered);
        let result = shake_hands(&mut *client, &mut *server.monitor_auth());
        assert_eq!(result.as_ref().ok().map(|(.., mode)| *mode), expected);
        if let Ok((ours, ..)) = result {
            assert_eq!(ours.connection_secret.is_empty(), expected == Some(Mode::Crc));
        }
    }
    server.set_modes(&[Mode::Crc]);
    let mut client = credentials.monitor_auth(&[Mode::Secure]);
    let error =
        shake_hands(&mut *client, &mut *server.monitor_auth()).map(drop).expect_err("no mode");
    assert!(error.text.contains("in the modes [crc]"), "{error}");
}

#[test]
fn a_server_cannot_weaken_the_mode() {
    let (server, credentials) = cluster();
    log_in(&server, &credentials).expect("new");
    for kind in [EntityKind::Monitor, EntityKind::Osd] {
        // Neither the mode that was not offered nor an empty secret passes.
        for mode in [Mode::Crc, Mode::Secure] {
            let (mut client, mut other) = if kind == EntityKind::Osd {
                let client: Box<dyn ClientAuth> =
                    credentials.service_auth(kind, &[Mode::Secure]).expect("a ticket");
                (client, server.service_auth(kind))
            } else {
                (credentials.monitor_auth(&[Mode::Secure]), server.monitor_auth())
            };
            let mut request = client.begin().expect("begins");
            request.modes = vec![Mode::Crc];
            let ServerAnswer::More(payload) = other.begin(&request) else { panic!("no challenge") };
            let answer = other.more(client.more(payload).expect("answers"));
            let ServerAnswer::Done { global_id, payload, .. } = answer else { panic!("refused") };
            assert!(client.done(global_id, mode, payload).is_err());
        }
    }
}

#[test]
fn wrong_keys_and_unknown_entities() {
    let (server, _) = cluster();
    let key = CryptoKey::new([9; 16], at(0));
    let wrong = Credentials::new(Entity::client("admin"), Some(key.clone()), [3; 32]);
    let text = error(log_in(&server, &wrong));
    assert!(text.starts_with("the key of client.admin does not fit the monitors' key"), "{text}");
    assert_eq!(wrong.global_id(), 0);
    let unknown = Credentials::new(Entity::client("eve"), Some(key), [3; 32]);
    let text = error(log_in(&server, &unknown));
    assert!(text.contains("they do not know client.eve"), "{text}");
}

#[test]
fn a_monitor_with_another_key_is_not_trusted() {
    let (server, credentials) = cluster();
    // It lets everybody in, but cannot make a ticket that the client can read.
    let mut client = credentials.monitor_auth(&BOTH);
    let mut monitor = server.monitor_auth();
    let ServerAnswer::More(payload) = monitor.begin(&client.begin().expect("begins")) else {
        panic!("no challenge")
    };
    client.more(payload).expect("answers");
    let other = KeyServer::new([7; 32]);
    let key = other.create_entity(Entity::client("admin"));
    let stranger = Credentials::new(Entity::client("admin"), Some(key), [8; 32]);
    let mut strange = stranger.monitor_auth(&BOTH);
    let mut strange_monitor = other.monitor_auth();
    let ServerAnswer::More(payload) = strange_monitor.begin(&strange.begin().expect("begins"))
    else {
        panic!("no challenge")
    };
    let ServerAnswer::Done { global_id, mode, payload, .. } =
        strange_monitor.more(strange.more(payload).expect("answers"))
    else {
        panic!("refused")
    };
    let text = error(client.done(global_id, mode, payload));
    assert!(text.starts_with("the key of client.admin does not fit"), "{text}");
    assert!(!credentials.has_ticket(EntityKind::Osd));
    assert_eq!(credentials.global_id(), 0);
}

#[test]
fn no_cephx_offered() {
    let (_, credentials) = cluster();
    let mut client = credentials.monitor_auth(&BOTH);
    let mut server = none::NoneServer { new_global_id: 7 };
    let text = shake_hands(&mut *client, &mut server).map(drop).expect_err("other methods").text;
    assert!(text.starts_with("the monitors do not offer cephx to client.admin"), "{text}");
    assert!(text.contains("[none]"), "{text}");
}

#[test]
fn a_client_keeps_its_global_id_with_its_old_ticket() {
    let (server, credentials) = cluster();
    log_in(&server, &credentials).expect("new");
    for _ in 0..3 {
        log_in(&server, &credentials).expect("the same again");
        assert_eq!(credentials.global_id(), 4100);
        reach_osd(&server, &credentials).expect("admin may");
    }
    // The secret of the old ticket is gone: refused once, then a new global id.
    for _ in 0..3 {
        server.rotate(EntityKind::Auth);
    }
    let text = error(log_in(&server, &credentials));
    assert!(text.starts_with("a monitor refuses the old ticket"), "{text}");
    log_in(&server, &credentials).expect("a new global id");
    assert_eq!(credentials.global_id(), 4101);
}

#[test]
fn connections_at_once_do_not_mix_what_they_got() {
    let late = at(1_000_000 + 54 * 3600);
    for chosen in 0..2 {
        let (server, credentials) = cluster();
        let mut clients = [credentials.monitor_auth(&BOTH), credentials.monitor_auth(&BOTH)];
        for client in &mut clients {
            shake_hands(&mut **client, &mut *server.monitor_auth()).expect("admin may");
        }
        assert_eq!((credentials.global_id(), credentials.has_ticket(EntityKind::Osd)), (0, false));
        clients[chosen].commit();
        let global_id = 4100 + chosen as u64;
        assert_eq!(credentials.global_id(), global_id);
        reach_osd(&server, &credentials).expect("admin may");
        // The ticket for monitors is renewed with the challenge of the chosen session.
        assert_eq!(credentials.renewal_due(late).expect("due").kinds[0], EntityKind::Auth);
        let (result, payload) = server.renew(global_id, credentials.begin_renewal().expect("due"));
        assert_eq!(result, 0);
        credentials.finish_renewal(result, payload).expect("good");
        log_in(&server, &credentials).expect("the same again");
        assert_eq!(credentials.global_id(), global_id);
    }
}

#[test]
fn a_late_refusal_of_the_old_ticket_does_not_forget_the_new_one() {
    let (server, credentials) = cluster();
    log_in(&server, &credentials).expect("new");
    let mut late = credentials.monitor_auth(&BOTH);
    let ServerAnswer::More(payload) = server.monitor_auth().begin(&late.begin().expect("begins"))
    else {
        panic!("no challenge")
    };
    late.more(payload).expect("answers");
    log_in(&server, &credentials).expect("the same again");
    assert_eq!(late.refused(-13, &[2], &[1]).kind, AuthErrorKind::OldTicket);
    assert_eq!(credentials.global_id(), 4100);
    assert!(credentials.has_ticket(EntityKind::Osd));
}

#[test]
fn only_a_refusal_without_an_old_ticket_is_one_of_the_client() {
    let kind = |result: Result<AuthDone, AuthError>| result.map(drop).expect_err("fails").kind;
    let (server, credentials) = cluster();
    let key = CryptoKey::new([9; 16], at(0));
    for name in ["admin", "eve"] {
        let wrong = Credentials::new(Entity::client(name), Some(key.clone()), [3; 32]);
        assert_eq!(kind(log_in(&server, &wrong)), AuthErrorKind::Refused);
    }
    log_in(&server, &credentials).expect("new");
    for service in [EntityKind::Auth, EntityKind::Osd] {
        (0..3).for_each(|_| server.rotate(service));
    }
    assert_eq!(kind(reach_osd(&server, &credentials)), AuthErrorKind::OldTicket);
    assert_eq!(kind(log_in(&server, &credentials)), AuthErrorKind::OldTicket);
    log_in(&server, &credentials).expect("the key is good");
    // A monitor that is busy, one with another method, damaged bytes.
    let mut client = Credentials::new(Entity::client("a"), Some(key), [3; 32]).monitor_auth(&BOTH);
    client.begin().expect("begins");
    assert_eq!(client.refused(-16, &[2], &[1]).kind, AuthErrorKind::Other);
    assert_eq!(client.refused(-95, &[1], &[1]).kind, AuthErrorKind::Refused);
    let mut client = credentials.monitor_auth(&BOTH);
    let changed =
        shake_hands_damaged(&mut *client, &mut *server.monitor_auth(), |index, payload| {
            let mut bytes = payload.to_vec();
            if index == 3 {
                bytes[40] ^= 1;
            }
            bytes.into()
        });
    assert_eq!(changed.map(drop).expect_err("damaged").kind, AuthErrorKind::Other);
}

#[test]
fn a_clock_that_is_set_back_does_not_stretch_tickets() {
    let (server, credentials) = cluster();
    log_in(&server, &credentials).expect("new");
    credentials.set_wall_clock(at(1_000_600));
    // Back by ten days. The ticket ages on.
    let back = 1_000_600 - 864_000;
    assert_eq!(credentials.renewal_due(at(back)), None);
    assert_eq!(credentials.renewal_at(), Some(at(back + 2100)));
    assert_eq!(credentials.renewal_due(at(back + 2099)), None);
    assert!(credentials.renewal_due(at(back + 2100)).is_some());
    assert!(credentials.has_ticket(EntityKind::Osd));
    credentials.set_wall_clock(at(back + 3000));
    assert!(!credentials.has_ticket(EntityKind::Osd));
    let due = credentials.renewal_due(at(back + 54 * 3600)).expect("due");
    assert_eq!(due.kinds[0], EntityKind::Auth);
}

#[test]
fn a_ticket_outlives_two_rotations() {
    let (server, credentials) = cluster();
    log_in(&server, &credentials).expect("new");
    for _ in 0..2 {
        server.rotate(EntityKind::Osd);
        reach_osd(&server, &credentials).expect("the secret is kept");
    }
    server.rotate(EntityKind::Osd);
    assert_eq!(credentials.renewal_due(at(1_000_000)), None);
    let text = error(reach_osd(&server, &credentials));
    assert!(text.starts_with("the service osd refuses the ticket of client.admin"), "{text}");
    // The refusal makes the ticket invalid, so a renewal is due.
    let due = credentials.renewal_due(at(1_000_000)).expect("due");
    assert_eq!(due.kinds, [EntityKind::Osd]);
    renew(&server, &credentials).expect("renewed");
    reach_osd(&server, &credentials).expect("a new ticket");
    assert_eq!(credentials.renewal_due(at(1_000_000)), None);
}

#[test]
fn tickets_are_renewed_before_they_end() {
    renew_in_time(KeyKind::Aes128);
    renew_in_time(KeyKind::Aes256);
}

fn renew_in_time(keys: KeyKind) {
    let (server, credentials) = cluster_with(keys);
    assert_eq!(credentials.renewal_due(at(1_000_000)), None);
    assert_eq!(credentials.begin_renewal(), None);
    log_in(&server, &credentials).expect("new");
    assert_eq!(credentials.renewal_at(), Some(at(1_000_000 + 2700)));
    assert_eq!(credentials.renewal_due(at(1_000_000 + 2699)), None);
    let due = credentials.renewal_due(at(1_000_000 + 2700)).expect("due");
    assert_eq!(due.kinds, [EntityKind::Osd, EntityKind::Manager]);
    let before = reach_osd(&server, &credentials).expect("still good").session_key;
    renew(&server, &credentials).expect("renewed");
    assert_eq!(credentials.renewal_due(at(1_000_000 + 2700)), None);
    assert_ne!(reach_osd(&server, &credentials).expect("good").session_key, before);
    assert_eq!(credentials.renewal_at(), Some(at(1_000_000 + 5400)));
    // After 54 hours that for monitors is due too, and all come with it.
    let late = at(1_000_000 + 54 * 3600);
    let due = credentials.renewal_due(late).expect("due");
    assert_eq!(due.kinds[0], EntityKind::Auth);
    let text = credentials.service_auth(EntityKind::Osd, &BOTH).err().expect("too old").text;
    assert_eq!(text, "the ticket of client.admin for the service osd has expired");
    renew(&server, &credentials).expect("renewed");
    assert_eq!(credentials.renewal_due(late), None);
    reach_osd(&server, &credentials).expect("good");
    // The new ticket for monitors keeps the global id.
    log_in(&server, &credentials).expect("the same again");
    assert_eq!(credentials.global_id(), 4100);
}

#[test]
fn one_renewal_at_a_time() {
    let (server, credentials) = cluster();
    log_in(&server, &credentials).expect("new");
    let late = 1_000_000 + 3000;
    assert!(credentials.renewal_due(at(late)).is_some());
    let payload = credentials.begin_renewal().expect("due");
    assert_eq!(credentials.renewal_due(at(late + 1)), None);
    // A refusal or silence is not repeated at once.
    let refused = credentials.finish_renewal(-13, Bytes::new()).expect_err("refused").text;
    assert_eq!(
        refused,
        "a monitor refuses new tickets for client.admin: permission denied (EACCES)"
    );
    assert_eq!(credentials.renewal_due(at(late + 19)), None);
    assert!(credentials.renewal_due(at(late + 20)).is_some());
    let _ = credentials.begin_renewal();
    assert_eq!(credentials.renewal_due(at(late + 21)), None);
    credentials.abandon_renewal();
    assert!(credentials.renewal_due(at(late + 21)).is_some());
    // A late answer is as good.
    let (result, payload) = server.renew(credentials.global_id(), payload);
    credentials.finish_renewal(result, payload).expect("good");
}

#[test]
fn renewals_of_strangers_are_refused() {
    let (server, credentials) = cluster();
    log_in(&server, &credentials).expect("new");
    let payload = credentials.begin_renewal().expect("a request");
    for at in 0..payload.len() {
        let mut other = payload.to_vec();
        other[at] ^= 0x41;
        let (result, reply) = server.renew(credentials.global_id(), other.into());
        if result == 0 {
            // Only the kinds and bytes without meaning can change.
            credentials.finish_renewal(result, reply).expect("readable");
        }
    }
    let (result, reply) = server.renew(credentials.global_id(), payload);
    assert_eq!(result, 0);
    for len in 0..reply.len() {
        assert!(credentials.finish_renewal(0, reply.slice(..len)).is_err());
    }
    for at in 0..reply.len() {
        let mut other = reply.to_vec();
        other[at] ^= 0x80;
        let _ = credentials.finish_renewal(0, other.into());
    }
}

#[test]
fn skewed_clocks_do_no_harm() {
    for now in [0, 1, 4_000_000_000, u32::MAX - 100] {
        let (server, credentials) = cluster();
        credentials.set_wall_clock(at(now));
        log_in(&server, &credentials).expect("new");
        reach_osd(&server, &credentials).expect("good");
        // Backwards: still good. A renewal that began in the future does not block.
        let _ = credentials.begin_renewal();
        credentials.set_wall_clock(at(now / 2));
        reach_osd(&server, &credentials).expect("good");
        // Far forwards: seems to have ended, and a renewal helps.
        let due = credentials.renewal_due(at(u32::MAX));
        assert!(due.is_some(), "{now}");
        renew(&server, &credentials).expect("renewed");
        log_in(&server, &credentials).expect("the same again");
        assert_eq!(credentials.global_id(), 4100);
    }
}

#[test]
fn services_that_are_missing_are_not_asked_for_again() {
    let (server, credentials) = cluster();
    server.remove_service(EntityKind::Manager);
    log_in(&server, &credentials).expect("new");
    assert!(!credentials.has_ticket(EntityKind::Manager));
    reach_osd(&server, &credentials).expect("good");
    assert_eq!(credentials.renewal_due(at(1_000_001)), None);
    // With the others it is asked for.
    let due = credentials.renewal_due(at(1_000_000 + 2700)).expect("due");
    assert_eq!(due.kinds, [EntityKind::Osd]);
    renew(&server, &credentials).expect("renewed");
    credentials.invalidate(EntityKind::Osd);
    assert!(!credentials.has_ticket(EntityKind::Osd));
    assert_eq!(credentials.renewal_due(at(1_002_800)).expect("due").kinds, [EntityKind::Osd]);
}

#[test]
fn the_method_none() {
    let credentials = Credentials::new(Entity::client("admin"), None, [2; 32]);
    let mut server = none::NoneServer { new_global_id: 77 };
    let mut client = credentials.monitor_auth(&BOTH);
    let (ours, _, mode) = shake_hands(&mut *client, &mut server).expect("all may");
    assert!(ours.session_key.is_empty() && ours.connection_secret.is_empty());
    assert_eq!(credentials.global_id(), 0);
    client.commit();
    assert_eq!((mode, credentials.global_id()), (Mode::Crc, 77));
    assert!(credentials.has_ticket(EntityKind::Osd));
    assert_eq!(credentials.renewal_due(at(u32::MAX)), None);
    let mut client = credentials.service_auth(EntityKind::Osd, &[Mode::Crc]).expect("none needed");
    shake_hands(&mut *client, &mut server).expect("all may");
    assert_eq!(credentials.global_id(), 77);
    let text = credentials.monitor_auth(&[Mode::Secure]).begin().expect_err("needs a key").text;
    assert!(text.contains("has no key"), "{text}");
    let (server, _) = cluster();
    let mut client = credentials.monitor_auth(&BOTH);
    let text =
        shake_hands(&mut *client, &mut *server.monitor_auth()).map(drop).expect_err("cephx").text;
    assert!(text.starts_with("the server demands cephx"), "{text}");
}

#[test]
fn messages_at_the_wrong_time() {
    let (server, credentials) = cluster();
    let mut client = credentials.monitor_auth(&BOTH);
    assert!(client.more(Bytes::from_static(&[1; 9])).is_err());
    let mut client = credentials.monitor_auth(&BOTH);
    client.begin().expect("begins");
    assert!(client.done(5, Mode::Crc, Bytes::new()).is_err());
    let mut client = credentials.monitor_auth(&BOTH);
    client.begin().expect("begins");
    client.more(Bytes::from_static(&[1; 9])).expect("answers");
    assert!(client.more(Bytes::from_static(&[1; 9])).is_err());
    assert_eq!(credentials.global_id(), 0);
    log_in(&server, &credentials).expect("new");
    let mut client = credentials.service_auth(EntityKind::Osd, &BOTH).expect("a ticket");
    assert!(client.done(5, Mode::Crc, Bytes::new()).is_err());
    assert!(client.more(Bytes::new()).is_err());
}

/// Changes one byte of one payload of a handshake, and cuts the payload at that byte.
fn damage_everything(kind: EntityKind, keys: KeyKind) {
    // (payload, length) of each payload of a sound handshake.
    let mut lengths = Vec::new();
    let run = |damage: &mut dyn FnMut(usize, Bytes) -> Bytes| {
        let (server, credentials) = cluster_with(keys);
        let (mut client, mut other) = if kind == EntityKind::Osd {
            log_in(&server, &credentials).expect("new");
            let client: Box<dyn ClientAuth> =
                credentials.service_auth(kind, &BOTH).expect("a ticket");
            (client, server.service_auth(kind))
        } else {
            (credentials.monitor_auth(&BOTH), server.monitor_auth())
        };
        let result = shake_hands_damaged(&mut *client, &mut *other, damage);
        (result, credentials)
    };
    let sound = run(&mut |index, payload| {
        lengths.push((index, payload.len()));
        payload
    });
    assert!(sound.0.is_ok());
    for &(index, len) in &lengths {
        for at in 0..len {
            let cut = run(&mut |i, payload| if i == index { payload.slice(..at) } else { payload });
            // What a monitor's reply lacks at its very end may be nothing at all.
            assert!(cut.0.is_err(), "cut {index} at {at}");
            for change in [1, 0x80] {
                let (changed, credentials) = run(&mut |i, payload| {
                    let mut bytes = payload.to_vec();
                    if i == index {
                        bytes[at] ^= change;
                    }
                    bytes.into()
                });
                // A change may pass where the bytes have no check, but then both sides have
                // different keys, or the byte has no meaning.
                match changed {
                    Ok((ours, theirs, _)) => {
                        assert_eq!(ours.session_key.len(), theirs.session_key.len());
                    }
                    Err(error) => assert!(!error.text.is_empty()),
                }
                let _ = credentials.renewal_due(Time::default());
            }
        }
    }
}

#[test]
fn damaged_bytes_of_monitors() {
    damage_everything(EntityKind::Monitor, KeyKind::Aes128);
    damage_everything(EntityKind::Monitor, KeyKind::Aes256);
}

#[test]
fn damaged_bytes_of_services() {
    damage_everything(EntityKind::Osd, KeyKind::Aes128);
    damage_everything(EntityKind::Osd, KeyKind::Aes256);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_make_a_client_panic(
        one in proptest::collection::vec(any::<u8>(), 0..200),
        two in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let (server, credentials) = cluster();
        log_in(&server, &credentials).expect("new");
        let clients = [
            credentials.monitor_auth(&BOTH),
            credentials.service_auth(EntityKind::Osd, &BOTH).expect("a ticket"),
        ];
        for mut client in clients {
            client.begin().expect("begins");
            let _ = client.more(one.clone().into());
            prop_assert!(client.done(1, Mode::Secure, two.clone().into()).is_err());
        }
        prop_assert!(credentials.finish_renewal(0, one.clone().into()).is_err());
        let mut monitor = server.monitor_auth();
        let request = AuthRequest { method: 2, modes: BOTH.to_vec(), payload: one.clone().into() };
        let answer = monitor.begin(&request);
        let is_refused = matches!(answer, ServerAnswer::BadMethod { .. });
        prop_assert!(is_refused, "{:?}", answer);
        let answer = server.service_auth(EntityKind::Osd).begin(&request);
        let is_refused = matches!(answer, ServerAnswer::BadMethod { .. });
        prop_assert!(is_refused, "{:?}", answer);
        prop_assert!(server.renew(4100, two.clone().into()).0 < 0);
    }
}
