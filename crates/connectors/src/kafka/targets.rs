//! Checks each connection of librdkafka against [`Targets`]: to bootstrap brokers and to brokers that the cluster
//! advertises.
//!
//! librdkafka calls `connect_cb` with the address before it connects. The `rdkafka` crate cannot set this callback.
//! Therefore the producer is created without brokers, which opens no connection. Then the callback is set and the
//! brokers are added.
//!
//! These connections are not registered with `trust::own`: the server's listeners do not speak Kafka's protocol.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rdkafka::bindings as rdsys;
use rdkafka::producer::{Producer, ThreadedProducer};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, connect};

use super::produce::TargetCheckContext;

/// Adds the brokers to a producer without brokers. The producer then connects.
pub(super) fn add_brokers(producer: &ThreadedProducer<TargetCheckContext>, brokers: &str) -> Result<(), String> {
    let brokers = CString::new(brokers).map_err(|_| "bootstrap_hosts: contains a zero byte".to_owned())?;
    let client = producer.client().native_ptr();
    // SAFETY: `client` lives as long as `producer`, and its configuration is part of it. librdkafka calls the
    // configuration read-only because its threads read it: only the threads of brokers read `connect_cb`, and the first
    // of them is started by `rd_kafka_brokers_add`. `rdkafka` has set the opaque pointer that the callback gets to the
    // producer's `TargetCheckContext`.
    let added = unsafe {
        let config = rdsys::rd_kafka_conf(client).cast_mut();
        rdsys::rd_kafka_conf_set_connect_cb(config, Some(connect_if_allowed));
        rdsys::rd_kafka_brokers_add(client, brokers.as_ptr())
    };
    match added {
        0 => Err("bootstrap_hosts: contains no valid broker".to_owned()),
        _ => Ok(()),
    }
}

/// Called by librdkafka on a broker thread instead of `connect(2)`. Returns 0 if the connection is established or in
/// progress, otherwise an error number.
unsafe extern "C" fn connect_if_allowed(
    socket: c_int,
    address: *const libc::sockaddr,
    address_bytes: c_int,
    broker: *const c_char,
    context: *mut c_void,
) -> c_int {
    // SAFETY: librdkafka passes an open socket, an IPv4 or IPv6 address of this length, and the broker's `host:port`
    // with its zero byte. All of them outlive the call. The context outlives the client, which waits for its threads
    // before it is freed.
    let (context, socket, broker, address) = unsafe {
        (
            &*context.cast::<TargetCheckContext>().cast_const(),
            BorrowedFd::borrow_raw(socket),
            CStr::from_ptr(broker).to_string_lossy(),
            SocketAddrAny::read(address.cast(), address_bytes as _),
        )
    };
    let Ok(address) = SocketAddr::try_from(address) else {
        return Errno::AFNOSUPPORT.raw_os_error();
    };
    if let Err(refused) = context.targets.check(&broker, address) {
        context.set_refused(refused.to_string());
        return Errno::ACCESS.raw_os_error();
    }
    match connect(socket, &address) {
        // The socket is non-blocking; librdkafka waits for the connection.
        Ok(()) | Err(Errno::INPROGRESS) => 0,
        Err(error) => error.raw_os_error(),
    }
}
