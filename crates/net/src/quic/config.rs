//! Settings and limits of QUIC.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{EndpointConfig, IdleTimeout, RandomConnectionIdGenerator, ServerConfig, TransportConfig, VarInt};
use ring::hmac;
use ring::rand::SystemRandom;
use rustls::Tls13CipherSuite;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;

use crate::config::ListenerConfig;
use crate::quic::path::PathControllers;
use crate::quic::windows::{WINDOW_BYTES, start_bytes};

/// Connections of a listener whose handshake is not complete and whose address is not validated. Further clients get a
/// Retry packet: they must show that they receive at their address, and the server keeps no state for them until then.
pub(super) const UNVALIDATED_MAX: usize = 64;

/// Connections of a listener per second whose address is not validated. Each costs a signature. Further clients get a
/// Retry packet.
pub(super) const UNVALIDATED_PER_SECOND_MAX: u32 = 256;

/// Connections of a listener whose handshake is not complete. Each takes about 20 KiB.
pub(super) const HALF_OPEN_MAX: usize = 2048;

/// As `HALF_OPEN_MAX`, for the validated clients of one address, or of one /64 of IPv6.
pub(super) const HALF_OPEN_PER_NETWORK_MAX: usize = 256;

/// Maximum number of streams that a client may open before it is logged in: the control stream, and others, which wait
/// or are reset. Without permission to open them, a client would wait for ever.
pub(super) const STREAMS_MAX: u32 = 4;

/// Size of connection IDs: large enough that no ID is used twice.
const CONNECTION_ID_BYTES: usize = 8;

/// Minimum interval between stateless resets. After a restart of the server, each client needs one.
const RESET_INTERVAL: Duration = Duration::from_millis(1);

/// The client must acknowledge a keep-alive within this time.
const KEEP_ALIVE_GRACE: Duration = Duration::from_secs(60);

/// Returns the number of connections per second whose address is not validated: at most half of the listener's rate of
/// connections.
pub(super) fn unvalidated_per_second(listener: &ListenerConfig) -> u32 {
    let Some(rate) = listener.max_connection_rate else {
        return UNVALIDATED_PER_SECOND_MAX;
    };
    let half = rate.amount.saturating_mul(500) / rate.period_ms.max(1);
    half.clamp(1, UNVALIDATED_PER_SECOND_MAX.into()) as u32
}

/// Returns the maximum number of streams that a logged-in client may open. The library announces new permissions when
/// an eighth of the streams has ended, so a client that may have only `max_data_streams` could not open all of them.
pub(super) fn streams_max(max_data_streams: u16) -> u32 {
    let data = u32::from(max_data_streams);
    STREAMS_MAX + data + data / 6
}

/// `secret`: if it is the same after a restart, clients of the previous process learn at once that their connection
/// has ended.
pub(super) fn endpoint_config(secret: Option<&[u8]>) -> io::Result<Arc<EndpointConfig>> {
    let key = match secret {
        Some(secret) => hmac::Key::new(hmac::HMAC_SHA256, secret),
        None => hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| io::Error::other("cannot get random bytes from the operating system"))?,
    };
    let mut config = EndpointConfig::new(Arc::new(key));
    config.cid_generator(|| Box::new(RandomConnectionIdGenerator::new(CONNECTION_ID_BYTES)));
    config.min_reset_interval(RESET_INTERVAL);
    Ok(Arc::new(config))
}

/// The TLS configuration decides about 0-RTT: `tls::server_config` does not enable it.
pub(super) fn server_config(
    tls: Arc<rustls::ServerConfig>,
    listener: &ListenerConfig,
    keep_alive: Option<Duration>,
) -> io::Result<Arc<ServerConfig>> {
    // The first packets use this suite, whatever suites are allowed for the connection (RFC 9001, section 5.2).
    let initial = TLS13_AES_128_GCM_SHA256.tls13().and_then(Tls13CipherSuite::quic_suite);
    let initial = initial.ok_or_else(|| io::Error::other("the TLS library does not support QUIC"))?;
    let crypto = QuicServerConfig::with_initial(tls, initial).map_err(io::Error::other)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(Arc::new(transport_config(listener, keep_alive)));
    Ok(Arc::new(config))
}

fn transport_config(listener: &ListenerConfig, keep_alive: Option<Duration>) -> TransportConfig {
    let receive_max = listener.receive_buffer_bytes.unwrap_or(WINDOW_BYTES);
    let send_max = listener.send_buffer_bytes.unwrap_or(WINDOW_BYTES);
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_MAX))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        // The window of the connection limits each stream, too.
        .stream_receive_window(VarInt::from_u32(receive_max))
        .receive_window(VarInt::from_u32(start_bytes(receive_max)))
        .send_window(start_bytes(send_max).into())
        .datagram_receive_buffer_size(None)
        .congestion_controller_factory(Arc::new(PathControllers::default()))
        .keep_alive_interval(keep_alive)
        .max_idle_timeout(keep_alive.and_then(|idle| IdleTimeout::try_from(idle + KEEP_ALIVE_GRACE).ok()));
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_can_always_open_all_its_data_streams() {
        for max in 1..=64 {
            let all = streams_max(max);
            let not_announced = all / 8;
            assert!(all - not_announced > u32::from(max), "{max}, and the control stream");
            assert!(all - STREAMS_MAX > not_announced, "{max}: announced after CONNACK");
        }
    }
}
