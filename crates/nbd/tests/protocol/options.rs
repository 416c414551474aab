//! Every option, accepted and refused.

use std::sync::Arc;

use fieldstone_nbd::wire::{flag, opt, rep};
use fieldstone_nbd::{
    Export, ExportError, ExportIndex, ExportList, Limits, Session, SessionPhase, Violation,
};

use crate::support::{
    OptionReply, context_data, counted, export, exports, feed, feed_in, go_data, haggling, option,
    option_replies, request, take,
};

fn two() -> Arc<ExportList> {
    exports(vec![export("first", 1 << 20), export("second", 2 << 20)])
}

fn ask(session: &mut Session, code: u32, data: &[u8]) -> Vec<OptionReply> {
    assert!(feed_in(session, &option(code, data), 3).is_empty());
    let replies = option_replies(&take(session));
    assert!(replies.iter().all(|reply| reply.option == code));
    replies
}

fn types(replies: &[OptionReply]) -> Vec<u32> {
    replies.iter().map(|reply| reply.reply_type).collect()
}

/// The type of the single error reply to an option. The reply must have a text.
fn refusal(session: &mut Session, code: u32, data: &[u8]) -> u32 {
    let replies = ask(session, code, data);
    assert_eq!(replies.len(), 1);
    assert_eq!(session.phase(), SessionPhase::Negotiating);
    assert!(std::str::from_utf8(&replies[0].data).unwrap().len() > 10);
    assert_ne!(replies[0].reply_type & rep::ERROR_BIT, 0);
    replies[0].reply_type
}

fn structured() -> Session {
    let mut session = haggling(two(), Limits::default());
    assert_eq!(types(&ask(&mut session, opt::STRUCTURED_REPLY, &[])), [rep::ACK]);
    session
}

#[test]
fn client_flags_that_were_not_offered_end_the_session() {
    for flags in [4u32, 1 << 31, 7] {
        let mut session = Session::new(two(), Limits::default());
        feed(&mut session, &flags.to_be_bytes());
        assert_eq!(session.violation(), Some(&Violation::ClientFlags { flags }));
        take(&mut session);
        assert_eq!(session.phase(), SessionPhase::Closed);
        assert!(!session.wants_input());
    }
}

#[test]
fn a_client_without_fixed_newstyle_may_only_name_an_export() {
    let mut session = Session::new(two(), Limits::default());
    feed(&mut session, &[0; 4]);
    feed(&mut session, &option(opt::LIST, &[]));
    assert_eq!(session.violation(), Some(&Violation::NotFixedNewstyle { option: opt::LIST }));

    let mut session = Session::new(two(), Limits::default());
    feed(&mut session, &[0; 4]);
    feed(&mut session, &option(opt::EXPORT_NAME, b"second"));
    assert_eq!(session.phase(), SessionPhase::Transmission(ExportIndex(1)));
    assert_eq!(take(&mut session).len(), 18 + 10 + 124);
}

#[test]
fn list_names_all_exports() {
    let mut session = haggling(two(), Limits::default());
    let replies = ask(&mut session, opt::LIST, &[]);
    assert_eq!(types(&replies), [rep::SERVER, rep::SERVER, rep::ACK]);
    let entry = [counted(b"second"), b"the second volume".to_vec()].concat();
    assert_eq!(replies[1].data, entry);
    assert_eq!(refusal(&mut session, opt::LIST, b"x"), rep::ERR_INVALID);
}

#[test]
fn info_describes_and_go_starts() {
    let mut session = haggling(two(), Limits::default());
    let info = ask(&mut session, opt::INFO, &go_data("second", &[1, 2, 3, 99]));
    assert_eq!(types(&info), [rep::INFO, rep::INFO, rep::INFO, rep::INFO, rep::ACK]);
    assert_eq!(session.phase(), SessionPhase::Negotiating);
    let go = ask(&mut session, opt::GO, &go_data("second", &[1, 2, 3, 99]));
    let data = |replies: &[OptionReply]| replies.iter().map(|r| r.data.clone()).collect::<Vec<_>>();
    assert_eq!(data(&info), data(&go), "GO must repeat what INFO said");
    assert_eq!(session.phase(), SessionPhase::Transmission(ExportIndex(1)));
}

#[test]
fn the_empty_name_is_the_default_export() {
    for (code, expected) in [(opt::GO, "first"), (opt::INFO, "first")] {
        let mut session = haggling(two(), Limits::default());
        let replies = ask(&mut session, code, &go_data("", &[1]));
        let name = replies.iter().find(|reply| reply.data.starts_with(&[0, 1])).unwrap();
        assert_eq!(name.data[2..], *expected.as_bytes());
    }
    let mut session = haggling(two(), Limits::default());
    feed(&mut session, &option(opt::EXPORT_NAME, b""));
    assert_eq!(session.phase(), SessionPhase::Transmission(ExportIndex(0)));

    // An export that really has the empty name takes precedence.
    let list = exports(vec![export("first", 512), export("", 1024)]);
    assert_eq!(list.find(b""), Some(ExportIndex(1)));
}

#[test]
fn malformed_info_and_go_are_refused() {
    let mut session = haggling(two(), Limits::default());
    for code in [opt::INFO, opt::GO] {
        assert_eq!(refusal(&mut session, code, &go_data("third", &[])), rep::ERR_UNKNOWN);
        let good = go_data("first", &[3]);
        for cut in 0..good.len() {
            assert_eq!(refusal(&mut session, code, &good[..cut]), rep::ERR_INVALID, "cut at {cut}");
        }
        let long = [good, vec![0]].concat();
        assert_eq!(refusal(&mut session, code, &long), rep::ERR_INVALID);
        let wild = [&u32::MAX.to_be_bytes()[..], b"first", &[0, 0]].concat();
        assert_eq!(refusal(&mut session, code, &wild), rep::ERR_INVALID);
    }
}

#[test]
fn unknown_exports_end_the_session_after_export_name() {
    for name in [b"third".to_vec(), vec![0xff; 5000]] {
        let mut session = haggling(two(), Limits::default());
        feed(&mut session, &option(opt::EXPORT_NAME, &name));
        assert!(matches!(session.violation(), Some(Violation::UnknownExport { .. })));
        assert_eq!(take(&mut session), b"");
        assert_eq!(session.phase(), SessionPhase::Closed);
    }
}

#[test]
fn tls_and_unknown_options_are_refused() {
    let mut session = haggling(two(), Limits::default());
    assert_eq!(refusal(&mut session, opt::STARTTLS, &[]), rep::ERR_POLICY);
    assert_eq!(refusal(&mut session, opt::STARTTLS, b"x"), rep::ERR_INVALID);
    for code in [0, 4, 11, 12, u32::MAX] {
        assert_eq!(refusal(&mut session, code, b"whatever"), rep::ERR_UNSUP);
    }
    assert_eq!(refusal(&mut session, opt::STRUCTURED_REPLY, b"x"), rep::ERR_INVALID);
}

#[test]
fn abort_is_acknowledged_even_with_data() {
    let mut session = haggling(two(), Limits::default());
    assert_eq!(types(&ask(&mut session, opt::ABORT, b"bye")), [rep::ACK]);
    assert_eq!(session.phase(), SessionPhase::Closed);
    assert_eq!(session.violation(), None);
}

#[test]
fn contexts_need_structured_replies() {
    let mut session = haggling(two(), Limits::default());
    let data = context_data("first", &["base:allocation"]);
    for code in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        assert_eq!(refusal(&mut session, code, &data), rep::ERR_INVALID);
    }
}

#[test]
fn contexts_are_listed_and_selected() {
    let both: &[u32] = &[rep::META_CONTEXT, rep::ACK];
    let none: &[u32] = &[rep::ACK];
    let cases: [(&[&str], &[u32], &[u32]); 7] = [
        (&[], both, none),
        (&["base:"], both, none),
        (&["base:allocation"], both, both),
        (&["base:allocation", "base:allocation", "base:"], both, both),
        (&["base:other"], none, none),
        (&["qemu:dirty-bitmap:b", "x-y:"], none, none),
        (&["qemu:", "base:allocation"], both, both),
    ];
    let mut session = structured();
    for (queries, listed, selected) in cases {
        let data = context_data("first", queries);
        assert_eq!(types(&ask(&mut session, opt::LIST_META_CONTEXT, &data)), listed, "{queries:?}");
        assert_eq!(types(&ask(&mut session, opt::SET_META_CONTEXT, &data)), selected);
    }
}

#[test]
fn malformed_context_queries_are_refused() {
    let mut session = structured();
    for code in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        let good = context_data("first", &["base:allocation"]);
        for cut in 0..good.len() {
            assert_eq!(refusal(&mut session, code, &good[..cut]), rep::ERR_INVALID, "cut at {cut}");
        }
        let mut too_many = good.clone();
        too_many[4 + 5..4 + 5 + 4].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(refusal(&mut session, code, &too_many), rep::ERR_INVALID);
        let data = context_data("first", &["allocation"]);
        assert_eq!(refusal(&mut session, code, &data), rep::ERR_INVALID);
        let data = context_data("first", &[&format!("base:{}", "a".repeat(4092))]);
        assert_eq!(refusal(&mut session, code, &data), rep::ERR_INVALID);
        let data = context_data("third", &["base:allocation"]);
        assert_eq!(refusal(&mut session, code, &data), rep::ERR_UNKNOWN);
    }
}

/// Whether the session passes a block status on, after these options and GO for "first".
fn block_status_works(options: &[(u32, Vec<u8>)]) -> bool {
    let mut session = structured();
    for (code, data) in options {
        ask(&mut session, *code, data);
    }
    ask(&mut session, opt::GO, &go_data("first", &[]));
    !feed(&mut session, &request(0, 7, 1, 0, 4096)).is_empty()
}

#[test]
fn the_last_selection_counts_and_only_for_its_export() {
    let set = |name: &str, query: &str| (opt::SET_META_CONTEXT, context_data(name, &[query]));
    let good = set("first", "base:allocation");
    assert!(!block_status_works(&[]));
    assert!(block_status_works(std::slice::from_ref(&good)));
    assert!(block_status_works(&[set("", "base:allocation")]), "the default export is the first");
    assert!(!block_status_works(&[set("second", "base:allocation")]));
    assert!(!block_status_works(&[good.clone(), set("second", "base:allocation")]));
    assert!(!block_status_works(&[good.clone(), set("first", "base:")]));
    assert!(!block_status_works(&[good.clone(), set("third", "base:allocation")]));
    assert!(!block_status_works(&[good.clone(), (opt::SET_META_CONTEXT, vec![1])]));
    assert!(block_status_works(&[set("second", "base:allocation"), good]));
}

#[test]
fn transmission_flags_say_what_the_export_can_do() {
    let all = flag::HAS_FLAGS
        | flag::SEND_FLUSH
        | flag::SEND_FUA
        | flag::SEND_TRIM
        | flag::SEND_WRITE_ZEROES
        | flag::SEND_FAST_ZERO
        | flag::SEND_CACHE;
    let plain = Export { can_multi_conn: false, ..export("e", 1 << 20) };
    assert_eq!(plain.transmission_flags(false), all);
    assert_eq!(plain.transmission_flags(true), all | flag::SEND_DF);
    let multi = Export { can_multi_conn: true, ..plain.clone() };
    assert_eq!(multi.transmission_flags(false), all | flag::CAN_MULTI_CONN);
    let writes = flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
    let read_only = Export { read_only: true, ..plain };
    assert_eq!(read_only.transmission_flags(false), (all | flag::READ_ONLY) & !writes);
}

#[test]
fn bad_option_magic_ends_the_session() {
    let mut session = haggling(two(), Limits::default());
    let mut bytes = option(opt::LIST, &[]);
    bytes[7] ^= 1;
    feed(&mut session, &bytes);
    assert!(matches!(session.violation(), Some(Violation::OptionMagic { .. })));
    assert_eq!(session.phase(), SessionPhase::Closed);
}

#[test]
fn the_number_of_options_is_bounded() {
    let limits = Limits { max_options: 10, ..Limits::default() };
    let mut session = haggling(two(), limits);
    for _ in 0..10 {
        assert_eq!(refusal(&mut session, 77, b"flood"), rep::ERR_UNSUP);
    }
    feed(&mut session, &option(77, b"flood"));
    assert_eq!(session.violation(), Some(&Violation::OptionFlood { limit: 10 }));
    assert_eq!(session.phase(), SessionPhase::Closed);
}

#[test]
fn the_length_of_options_is_bounded() {
    let limits = Limits { max_option_bytes: 100, max_discard_bytes: 5000, ..Limits::default() };
    let mut session = haggling(two(), limits);
    assert_eq!(refusal(&mut session, 77, &[0; 100]), rep::ERR_UNSUP);
    assert_eq!(refusal(&mut session, 77, &[0; 101]), rep::ERR_TOO_BIG);
    assert_eq!(refusal(&mut session, opt::GO, &[0; 5000]), rep::ERR_TOO_BIG);
    assert_eq!(types(&ask(&mut session, opt::STRUCTURED_REPLY, &[])), [rep::ACK]);

    let mut header = option(77, &[]);
    header[12..16].copy_from_slice(&5001u32.to_be_bytes());
    feed(&mut session, &header);
    assert!(matches!(session.violation(), Some(Violation::OptionTooLong { len_bytes: 5001, .. })));

    let mut session = haggling(two(), limits);
    feed(&mut session, &option(opt::EXPORT_NAME, &[b'n'; 101]));
    assert!(matches!(session.violation(), Some(Violation::OptionTooLong { .. })));
}

#[test]
fn shutting_down_refuses_options_but_abort() {
    let mut session = haggling(two(), Limits::default());
    session.shut_down();
    for code in [opt::LIST, opt::GO, opt::STRUCTURED_REPLY, 77] {
        assert_eq!(refusal(&mut session, code, &[]), rep::ERR_SHUTDOWN);
    }
    assert_eq!(types(&ask(&mut session, opt::ABORT, &[])), [rep::ACK]);

    let mut session = haggling(two(), Limits::default());
    session.shut_down();
    feed(&mut session, &option(opt::EXPORT_NAME, b"first"));
    assert_eq!(session.violation(), Some(&Violation::ShuttingDown));
}

#[test]
fn the_first_export_is_the_default_unless_there_is_none() {
    let list = ExportList::new(vec![export("e", 4096), export("f", 4096)]).expect("a list");
    assert_eq!(list.find(b""), list.find(b"e"));
    let list = list.without_default();
    assert!(list.find(b"").is_none() && list.find(b"e").is_some());
}

#[test]
fn export_lists_are_checked() {
    let good = || export("e", 1 << 20);
    assert_eq!(ExportList::new(vec![]), Err(ExportError::None));
    let twice = ExportList::new(vec![good(), good()]);
    assert_eq!(twice, Err(ExportError::DuplicateName { name: "e".into() }));
    let long = || "x".repeat(4097);
    let bad = ExportList::new(vec![Export { name: long(), ..good() }]);
    assert!(matches!(bad, Err(ExportError::StringTooLong { what: "name", .. })));
    let bad = ExportList::new(vec![Export { description: long(), ..good() }]);
    assert!(matches!(bad, Err(ExportError::StringTooLong { what: "description", .. })));
    for bytes in [0, 256, 1000, 64 << 20] {
        let bad = ExportList::new(vec![Export { preferred_block_bytes: bytes, ..good() }]);
        assert_eq!(bad, Err(ExportError::PreferredBlock { name: "e".into(), bytes }));
    }
    for (bytes, preferred_block_bytes) in [(0, 4096), (3, 4096), (8192, 4096), (1 << 17, 1 << 20)] {
        let export = Export { minimum_block_bytes: bytes, preferred_block_bytes, ..good() };
        let bad = ExportList::new(vec![export]);
        let bytes_max = preferred_block_bytes.min(1 << 16);
        assert_eq!(bad, Err(ExportError::MinimumBlock { name: "e".into(), bytes, bytes_max }));
    }
    let bad = ExportList::new(vec![Export { size_bytes: 1 << 63, ..good() }]);
    assert!(matches!(bad, Err(ExportError::TooLarge { .. })));
}

#[test]
fn exports_take_their_block_size_from_the_backend() {
    let info = |block_bytes, preferred_bytes| fieldstone_block::Info {
        size_bytes: 1 << 20,
        block_bytes,
        preferred_bytes,
        read_ahead_bytes: 0,
        read_only: true,
    };
    let cases = [
        ((1, 0), (1, 4096)),
        ((1, 1), (1, 512)),
        ((4096, 1), (4096, 4096)),
        ((512, 5000), (512, 8192)),
        ((0, u32::MAX), (1, 32 << 20)),
    ];
    for ((block, preferred), told) in cases {
        let export = Export::new("e", &info(block, preferred));
        assert_eq!((export.minimum_block_bytes, export.preferred_block_bytes), told);
        assert!(export.read_only && !export.can_multi_conn);
        ExportList::new(vec![export]).unwrap();
    }
}
