//! Converts the configuration to the settings of `net` and `broker`.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use auth::Cidr;
use broker::{
    ListenerRates, OverlappingDelivery, PublishLimits, PublishRates, QueueDropPolicy, ShardConfig, ShareStrategy,
    TokenRate, Transport,
};
use net::{AddressPrefix, ListenerConfig, ListenerInfo, ProxyConfig, ServerConfig};

use super::derived_limits::DerivedLimits;
use crate::config::options::access::source::DenyAction;
use crate::config::options::listeners::{API_LISTENER, ListenerKind, ProxyProtocol};
use crate::config::options::mqtt::{OverlappingSubscriptions, QueueDrop as ConfiguredDrop, SharedStrategy};
use crate::config::options::server::DurabilityWait;
use crate::config::units::{ByteRate, Rate};
use crate::config::value::Switch;
use crate::config::{Config, Listener, files};
use crate::process_limits;

/// Maximum number of WebSocket connections on the port of the API.
const CONSOLE_CONNECTIONS_MAX: usize = 100;

pub fn server_config(config: &Config, workers: NonZeroU16) -> Result<ServerConfig, String> {
    let listeners = config
        .listeners
        .iter()
        .map(|listener| listener_config(config, listener))
        .collect::<Result<Vec<_>, String>>()?;
    Ok(ServerConfig {
        listeners,
        handed_over: config.api.enabled.then(|| of_api(config)).transpose()?,
        workers: Some(workers),
        max_connections: config.limits.max_connections.0.map_or(usize::MAX, |n| n as usize),
        max_connection_rate_per_address: config.limits.max_connection_rate_per_address.0.map(token_rate),
        max_incomplete_packets: match config.limits.max_incomplete_packets.0 {
            Some(size) => size.0 as usize,
            None => usize::try_from(packet_memory_bytes()).unwrap_or(usize::MAX),
        },
        max_quic_windows: match config.limits.max_quic_windows.0 {
            Some(size) => size.0 as usize,
            None => usize::try_from(quic_window_bytes()).unwrap_or(usize::MAX),
        },
        seed: seed()?,
        ..ServerConfig::default()
    })
}

/// Memory for packets that are being received. The rest is for their copies in queues and output, and for everything
/// else.
fn packet_memory_bytes() -> u64 {
    /// Share of the memory of the process.
    const PACKET_SHARE: u64 = 8;
    process_limits::memory_bytes().map_or(u64::MAX, |bytes| bytes / PACKET_SHARE)
}

/// Memory for the windows of QUIC connections.
fn quic_window_bytes() -> u64 {
    /// Share of the memory of the process.
    const WINDOW_SHARE: u64 = 8;
    process_limits::memory_bytes().map_or(u64::MAX, |bytes| bytes / WINDOW_SHARE)
}

/// Returns `mqtt.max_packet_size`, or less if the memory does not suffice for it.
fn max_packet_size(configured: u64) -> u32 {
    let most = packet_memory_bytes();
    if configured > most {
        tracing::warn!(
            configured,
            max_packet_size = most,
            "mqtt.max_packet_size is more than an eighth of the memory that the process may use, and is reduced"
        );
    }
    configured.min(most) as u32
}

/// The settings of MQTT on the port of the API, as for a listener.
fn of_api(config: &Config) -> Result<ListenerConfig, String> {
    let transport = match files::api_tls_files(config) {
        Some(_) => Transport::SecureWebSocket,
        None => Transport::WebSocket,
    };
    let mut made = ListenerConfig::new(API_LISTENER, transport, config.api.bind.resolve("api.bind")?);
    made.max_connections = CONSOLE_CONNECTIONS_MAX;
    Ok(made)
}

fn seed() -> Result<u64, String> {
    use ring::rand::{SecureRandom, SystemRandom};
    let mut bytes = [0; 8];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| "cannot get random bytes from the operating system".to_owned())?;
    Ok(u64::from_ne_bytes(bytes))
}

fn listener_config(config: &Config, listener: &Listener) -> Result<ListenerConfig, String> {
    let options = &listener.options;
    let transport = match listener.kind {
        ListenerKind::Tcp => Transport::Tcp,
        ListenerKind::Tls => Transport::Tls,
        ListenerKind::Ws => Transport::WebSocket,
        ListenerKind::Wss => Transport::SecureWebSocket,
        ListenerKind::Quic => Transport::Quic,
    };
    let mut made = ListenerConfig::new(&listener.name, transport, address(listener)?);
    made.tls = tls(config, listener)?;
    if let Some(tls) = listener.tls.as_ref().filter(|tls| tls.is_for_quic) {
        let place = format!("{} {}", config.data_dir.display(), listener.label());
        let secret = net::tls::stateless_reset_secret(&files::tls_files(config, tls), &place);
        made.stateless_reset_secret = secret.map_err(|e| tls_error(listener, &e))?;
    }
    if let Some(ws) = &listener.ws {
        made.websocket.path = ws.path.as_str().into();
        made.websocket.allowed_origins = ws.allowed_origins.iter().map(|origin| origin.as_str().into()).collect();
        made.websocket.trusted_proxies = ws.trusted_proxies.iter().map(network).collect();
        made.websocket.max_request_head = ws.max_request_head.0 as usize;
    }
    if let Some(quic) = &listener.quic {
        made.max_data_streams = quic.max_data_streams;
    }
    if options.proxy_protocol != ProxyProtocol::Off {
        let trusted = options.proxy_protocol_trusted.iter().map(network);
        made.proxy = Some(ProxyConfig {
            trusted: trusted.collect(),
        });
    }
    made.max_connections = options.max_connections.0.map_or(usize::MAX, |n| n as usize);
    made.max_connection_rate = options.max_connection_rate.0.map(token_rate);
    made.handshake_timeout = options.handshake_timeout;
    made.backlog = options.backlog;
    made.max_packet_size = options.max_packet_size.0.map(|size| size.0 as u32);
    Ok(made)
}

pub fn network(cidr: &Cidr) -> AddressPrefix {
    AddressPrefix {
        address: cidr.address(),
        prefix_bits: cidr.prefix_bits(),
    }
}

fn token_rate(rate: Rate) -> TokenRate {
    TokenRate {
        amount: rate.amount,
        period_ms: u64::try_from(rate.per.as_millis()).unwrap_or(u64::MAX),
    }
}

fn publish_rates(messages: Switch<Rate>, bytes: Switch<ByteRate>) -> PublishRates {
    PublishRates {
        messages: messages.0.map(token_rate),
        bytes: bytes.0.map(|rate| token_rate(rate.0)),
    }
}

/// `running` has the listeners of the server, in their order. A changed configuration may have others, which need a
/// restart.
fn publish_limits(config: &Config, running: &[Listener]) -> PublishLimits {
    let limits = &config.limits;
    let of_listener = |listener: &Listener| {
        let label = listener.label();
        let configured = config.listeners.iter().find(|other| other.label() == label);
        let options = configured.map(|configured| &configured.options);
        ListenerRates {
            label: label.into(),
            rates: options.map_or(PublishRates::default(), |options| {
                publish_rates(options.max_publish_rate, options.max_publish_bytes)
            }),
        }
    };
    PublishLimits {
        client: publish_rates(limits.publish_rate, limits.publish_bytes),
        user: publish_rates(limits.publish_rate_per_user, limits.publish_bytes_per_user),
        address: publish_rates(limits.publish_rate_per_address, limits.publish_bytes_per_address),
        listeners: running.iter().map(of_listener).collect(),
    }
}

fn address(listener: &Listener) -> Result<SocketAddr, String> {
    listener
        .options
        .bind
        .resolve(&format!("listeners.{}.bind", listener.label()))
}

fn tls(config: &Config, listener: &Listener) -> Result<Option<Arc<rustls::ServerConfig>>, String> {
    let Some(tls) = &listener.tls else { return Ok(None) };
    net::tls::server_config(&files::tls_files(config, tls))
        .map(Some)
        .map_err(|e| tls_error(listener, &e))
}

fn tls_error(listener: &Listener, error: &net::tls::TlsError) -> String {
    format!("listeners.{}: {}", listener.label(), files::chain(error))
}

/// Equals `Listener::label` of the configuration.
pub fn label(info: &ListenerInfo) -> String {
    format!("{}.{}", net::transport_key(info.transport), info.name)
}

/// The node has `workers` shards and the listeners `running`.
pub fn shard_config(config: &Config, workers: u16, running: &[Listener]) -> ShardConfig {
    let derived = DerivedLimits::of_process();
    let mqtt = &config.mqtt;
    let retained = &config.retained;
    let long_count = |limit: Option<u64>| limit.map_or(usize::MAX, |n| n as usize);
    let count = |limit: Option<u32>| limit.map_or(usize::MAX, |n| n as usize);
    ShardConfig {
        max_packet_size: max_packet_size(mqtt.max_packet_size.0),
        max_client_id_length: derived.client_id_bytes(config),
        max_will_bytes: derived.will_bytes(config),
        max_exchange_bytes: ShardConfig::default().max_exchange_bytes,
        max_topic_levels: usize::from(mqtt.max_topic_levels),
        control_characters: mqtt.control_characters,
        max_topic_alias_in: mqtt.max_topic_alias_in,
        max_topic_alias_out: mqtt.max_topic_alias_out,
        max_qos: mqtt.max_qos,
        retain_available: mqtt.retain_available,
        wildcard_subscription: mqtt.wildcard_subscription,
        shared_subscription: mqtt.shared_subscription,
        exclusive_subscription: mqtt.exclusive_subscription,
        exclusive_release_ms: mqtt
            .exclusive_subscription_release
            .0
            .map(|time| time.as_millis() as u64),
        subscription_identifiers: mqtt.subscription_identifiers,
        publish_will_of_banned: config.access.publish_will_of_banned,
        disconnect_denied: config.access.deny_action == DenyAction::Disconnect,
        keep_alive_percent: (mqtt.keep_alive_multiplier * 100.0) as u64,
        server_keep_alive_s: mqtt.server_keep_alive.0.map(|d| seconds(d) as u16),
        max_keep_alive_s: mqtt.max_keep_alive.0.map(|d| seconds(d) as u16),
        max_session_expiry_s: mqtt.max_session_expiry.0.map_or(u32::MAX, seconds),
        default_session_expiry_s: mqtt.default_session_expiry.0.map_or(u32::MAX, seconds),
        max_message_expiry_s: mqtt.max_message_expiry.0.map(seconds),
        default_message_expiry_s: mqtt.default_message_expiry.0.map(seconds),
        receive_maximum: mqtt.receive_maximum,
        max_inflight: mqtt.max_inflight,
        retry_interval_ms: mqtt.retry_interval.0.map(|d| d.as_millis() as u64),
        max_queued_messages: count(mqtt.max_queued_messages.0),
        max_queued_bytes: mqtt.max_queued_bytes.0.map_or(usize::MAX, |size| size.0 as usize),
        queue_qos0: mqtt.queue_qos0,
        queue_drop: match mqtt.queue_drop {
            ConfiguredDrop::Oldest => QueueDropPolicy::Oldest,
            ConfiguredDrop::Newest => QueueDropPolicy::Newest,
        },
        journals_all_messages: config.durability.wait == DurabilityWait::Always,
        overlapping_subscriptions: match mqtt.overlapping_subscriptions {
            OverlappingSubscriptions::Once => OverlappingDelivery::DeliverOnce,
            OverlappingSubscriptions::Each => OverlappingDelivery::DeliverEach,
        },
        shared_strategy: strategy(mqtt.shared_strategy),
        shared_strategies: config
            .shared_strategies
            .iter()
            .map(|(group, s)| (group.clone(), strategy(*s)))
            .collect(),
        max_subscriptions: count(mqtt.max_subscriptions.0),
        max_sessions: long_count(config.limits.max_sessions.0),
        shares: derived.shares(config, workers),
        max_delayed_messages: count(mqtt.max_delayed_messages.0),
        max_delay_s: seconds(mqtt.max_delay),
        retained_max_messages: long_count(retained.max_messages.0),
        retained_max_bytes: usize::try_from(derived.retained_bytes(config)).unwrap_or(usize::MAX),
        retained_max_payload: retained.max_payload.0.map_or(usize::MAX, |size| size.0 as usize),
        retained_default_expiry_s: retained.default_expiry.0.map(seconds),
        output_buffer_bytes: config.limits.output_buffer_bytes.0 as usize,
        burst_buffer_bytes: config.limits.burst_buffer_bytes.0 as usize,
        publish_limits: publish_limits(config, running),
        is_client_id_owned: config.access.session_owner == crate::config::options::access::SessionOwner::SameUser,
        response_information: None,
        server_reference: None,
        // Settings without an option.
        page_entries: ShardConfig::default().page_entries,
        group_window: ShardConfig::default().group_window,
    }
}

fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

fn strategy(strategy: SharedStrategy) -> ShareStrategy {
    match strategy {
        SharedStrategy::RoundRobin => ShareStrategy::RoundRobin,
        SharedStrategy::Random => ShareStrategy::Random,
        SharedStrategy::Sticky => ShareStrategy::Sticky,
        SharedStrategy::HashClient => ShareStrategy::HashClient,
        SharedStrategy::HashTopic => ShareStrategy::HashTopic,
        SharedStrategy::LeastInflight => ShareStrategy::LeastInflight,
    }
}
