//! Front-ends hear of a device that has another size.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fieldstone_block::{Completion, Info};
use fieldstone_host::frontends::nbd::{self, Exports};
use fieldstone_host::store::Mail;
use fieldstone_host::{DeviceId, Frontend, FrontendCounts, FrontendIo, FrontendKind, Submitter};
use fieldstone_nbd::{Export, ExportList};

use crate::common::wait_until;
use crate::frontends::start_with;
use crate::scripted::{self, Script};

/// The core, the device and its size of every event.
static HEARD: Mutex<Vec<(usize, DeviceId, u64)>> = Mutex::new(Vec::new());
/// The answers to mail with the name of a device.
static ASKED: Mutex<Vec<(usize, Option<u64>)>> = Mutex::new(Vec::new());

const LISTENER: FrontendKind = FrontendKind {
    name: "listener",
    about: "a test",
    make: |_| Box::new(ListenerEnd),
    offer: None,
};

struct ListenerEnd;

impl Frontend for ListenerEnd {
    fn counts(&self) -> FrontendCounts {
        FrontendCounts::default()
    }
    fn in_flight(&self) -> usize {
        0
    }
    fn mail(&mut self, mail: Mail, io: &mut FrontendIo<'_>) {
        let device: DeviceId = *mail.downcast().expect("only devices are sent");
        let size_bytes = io.device_info(device).map(|info| info.size_bytes);
        ASKED.lock().expect("no panic").push((io.core().0, size_bytes));
    }
    fn device_changed(&mut self, device: DeviceId, info: &Info, io: &mut FrontendIo<'_>) {
        HEARD.lock().expect("no panic").push((io.core().0, device, info.size_bytes));
    }
    fn complete(&mut self, _: Submitter, _: Completion) {}
    fn submit(&mut self, _: &mut FrontendIo<'_>) -> bool {
        false
    }
    fn flush(&mut self, _: &mut FrontendIo<'_>) -> bool {
        false
    }
    fn drain(&mut self) {}
    fn close(&mut self, _: &mut FrontendIo<'_>) {}
}

#[test]
fn front_ends_of_all_cores_hear_of_a_new_size_once() {
    let script = Arc::new(Script { size_bytes: AtomicU64::new(1 << 20), ..Script::default() });
    let host = start_with(2, &[&LISTENER]);
    let listener = host.handle().frontend("listener").expect("it was named");
    let device = scripted::open(&host, &script);
    script.size_bytes.store(3 << 20, Ordering::Relaxed);
    let heard = || {
        let mut heard = HEARD.lock().expect("no panic").clone();
        heard.sort_by_key(|(core, _, size_bytes)| (*core, *size_bytes));
        heard
    };
    wait_until("all cores have heard", || heard().len() >= 4);
    // The device runs every millisecond. That is no event.
    let timers = script.timers.load(Ordering::Relaxed);
    wait_until("it has run", || script.timers.load(Ordering::Relaxed) >= timers + 10);
    let of_core = |core| [(core, device, 1 << 20), (core, device, 3 << 20)];
    assert_eq!(heard(), [of_core(0), of_core(1)].concat());
    // A front-end that learns of the device only now gets the present size.
    let ask = || {
        assert!(host.handle().mail_frontend(listener, || Box::new(device)), "a core hangs");
        let mut asked = std::mem::take(&mut *ASKED.lock().expect("no panic"));
        asked.sort_unstable();
        asked
    };
    assert_eq!(ask(), [(0, Some(3 << 20)), (1, Some(3 << 20))]);
    host.handle().close_device(device).recv().expect("answered").expect("closed");
    host.handle().forget_device(device);
    wait_until("all cores have forgotten", || ask() == [(0, None), (1, None)]);
    host.stop().expect("no core failed");
}

#[test]
fn nbd_clients_that_come_after_a_change_get_the_new_size() {
    let script = Arc::new(Script { size_bytes: AtomicU64::new(1 << 20), ..Script::default() });
    let host = start_with(2, &[]);
    let device = scripted::open(&host, &script);
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("s");
    let nbd_kind = host.handle().frontend(nbd::KIND.name).expect("it was named");
    let address = fieldstone_uring::Address::Unix(path.clone());
    let listener = fieldstone_uring::Listener::bind(&address).expect("free");
    let size = host.handle().snapshot(false)[0].devices[0].info.clone();
    let offer = |size_bytes| {
        let export = Export::new("d", &Info { size_bytes, ..size.clone() });
        let list = Arc::new(ExportList::new(vec![export]).expect("valid"));
        nbd::offer(host.handle(), Exports { list, devices: vec![device] }).expect("it has NBD");
    };
    offer(1 << 20);
    host.handle().listen(listener, fieldstone_host::Destination::Frontend(nbd_kind));
    // The cores get the connections in turn.
    let sizes = || [export_size(&path), export_size(&path)];
    assert_eq!(sizes(), [1 << 20; 2]);
    script.size_bytes.store(5 << 20, Ordering::Relaxed);
    wait_until("new clients get the new size", || sizes() == [5 << 20; 2]);
    // A list that was made before the change comes late.
    offer(1 << 20);
    assert_eq!(sizes(), [5 << 20; 2]);
    host.stop().expect("no core failed");
}

/// Connects as an NBD client with NBD_OPT_EXPORT_NAME, and returns the size of the export.
fn export_size(path: &std::path::Path) -> u64 {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(path).expect("it listens");
    stream.set_read_timeout(Some(crate::common::TIMEOUT)).expect("set");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("a greeting");
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    // Flags of the client, then the option with its name.
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend(1u32.to_be_bytes());
    hello.extend(1u32.to_be_bytes());
    hello.extend(b"d");
    stream.write_all(&hello).expect("taken");
    let mut size = [0; 8];
    stream.read_exact(&mut size).expect("the export");
    u64::from_be_bytes(size)
}
