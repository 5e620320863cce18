//! Options of listeners. All kinds share the first section; TLS and WebSocket add one each.

use std::path::PathBuf;
use std::time::Duration;

use auth::Cidr;

use crate::config::address::Bind;
use crate::config::key::Segment::{Any, Fixed, OneOf};
use crate::config::option::section;
use crate::config::units::{ByteSize, Rate};
use crate::config::value::{Limit, Unset, choice};

choice! {
    pub enum ListenerKind { Tcp = "tcp", Tls = "tls", Ws = "ws", Wss = "wss" }
}

pub const KINDS: &[&str] = &["tcp", "tls", "ws", "wss"];
pub const TLS_KINDS: &[&str] = &["tls", "wss"];
pub const WS_KINDS: &[&str] = &["ws", "wss"];

/// What MQTT on the API's own port is called beside the listeners; none of these with WebSocket may be called so.
pub const API_LISTENER: &str = "api";

impl ListenerKind {
    pub const ALL: [ListenerKind; 4] = [
        ListenerKind::Tcp,
        ListenerKind::Tls,
        ListenerKind::Ws,
        ListenerKind::Wss,
    ];

    pub const fn has_tls(self) -> bool {
        matches!(self, ListenerKind::Tls | ListenerKind::Wss)
    }

    pub const fn has_ws(self) -> bool {
        matches!(self, ListenerKind::Ws | ListenerKind::Wss)
    }

    /// Where the listener named `default` stands.
    pub const fn default_port(self) -> u16 {
        match self {
            ListenerKind::Tcp => 1883,
            ListenerKind::Tls => 8883,
            ListenerKind::Ws => 8083,
            ListenerKind::Wss => 8084,
        }
    }

    /// What a client's URL starts with.
    pub const fn scheme(self) -> &'static str {
        match self {
            ListenerKind::Tcp => "mqtt",
            ListenerKind::Tls => "mqtts",
            ListenerKind::Ws => "ws",
            ListenerKind::Wss => "wss",
        }
    }
}

choice! {
    /// The PROXY protocol header that load balancers put in front of a connection.
    pub enum ProxyProtocol { Off = "off", On = "on" }
}

choice! {
    pub enum VerifyClient {
        None = "none",
        /// A certificate that is shown must be good.
        Optional = "optional",
        Required = "required",
    }
}

choice! {
    pub enum TlsVersion { V1_2 = "1.2", V1_3 = "1.3" }
}

section! {
    /// A place where clients connect. There can be any number of each kind, each with a name: `[listeners.tcp.default]`,
    /// `[listeners.tcp.lan]`. `tcp.default` (1883) and `ws.default` (8083) are always there unless disabled;
    /// `tls.default` (8883) and `wss.default` (8084) are there as soon as `tls.cert_file` or their own is set.
    pub struct ListenerOptions at [Fixed("listeners"), OneOf(KINDS), Any("name")] {
        /// Turns the listener on or off.
        restart enabled: bool = "true";
        /// Address and port. A bare port means every IPv4 interface; "[::]:1883" is every interface. Of a name only the first
        /// address is listened on: `localhost` may be 127.0.0.1 or [::1].
        /// Listeners named `default` have one: 1883 (tcp), 8883 (tls), 8083 (ws), 8084 (wss) on "0.0.0.0".
        restart bind: Bind = "0.0.0.0:1883";
        /// Connections at the same time on this listener.
        restart max_connections: Limit<u64> = "unlimited" ["1", "100000000"] in "connections";
        /// New connections per time: "100/s", or "600/m", of which all may come at once. More of them are closed with a reset and
        /// counted.
        restart max_connection_rate: Limit<Rate> = "unlimited";
        /// Time from accepting a connection until its CONNECT is complete, TLS and WebSocket handshakes included.
        restart handshake_timeout: Duration = "10s" ["100ms", "10m"];
        /// Connections that the kernel keeps until they are accepted.
        restart backlog: u32 = "1024" ["1", "65535"] in "connections";
        /// Largest packet on this listener, when it is to be smaller than `mqtt.max_packet_size`; a larger one has no effect.
        restart max_packet_size: Unset<ByteSize> = "" ["20B", "256MiB"];
        /// Whether every connection begins with a PROXY protocol header, version 1 or 2: `off` or `on`.
        restart proxy_protocol: ProxyProtocol = "off";
        /// Who may send that header: addresses or networks. Required with `proxy_protocol`, because a header can name
        /// any address, that of an anonymous client on loopback included.
        restart proxy_protocol_trusted: Vec<Cidr> = "";
    }
}

section! {
    /// Certificates for all `tls` and `wss` listeners; each can have its own. Changes hold for connections accepted from then on.
    pub struct TlsDefaults at [Fixed("tls")] {
        /// Certificate chain (PEM). Setting it brings up the `tls` and `wss` listeners named `default`.
        live cert_file: Unset<PathBuf> = "";
        /// Private key of the certificate (PEM), not encrypted.
        live key_file: Unset<PathBuf> = "";
        /// Authorities that client certificates are checked against (PEM).
        live ca_file: Unset<PathBuf> = "";
    }
}

section! {
    /// More options of `tls` and `wss` listeners. Changes hold for connections accepted from then on.
    pub struct TlsOptions at [Fixed("listeners"), OneOf(TLS_KINDS), Any("name")] {
        /// Certificate chain (PEM). Empty: `tls.cert_file`.
        live cert_file: Unset<PathBuf> = "";
        /// Private key of the certificate (PEM), not encrypted. Empty: `tls.key_file`.
        live key_file: Unset<PathBuf> = "";
        /// Authorities that client certificates are checked against (PEM). Empty: `tls.ca_file`.
        live ca_file: Unset<PathBuf> = "";
        /// Whether clients show a certificate: `none`, `optional` (but it must be good) or `required`. It opens the door and no
        /// more: who the client is, is still said by its user name and password, or it is anonymous (`access.anonymous`).
        live verify_client: VerifyClient = "none";
        /// Oldest TLS version: "1.2" or "1.3".
        live min_tls_version: TlsVersion = "1.2";
    }
}

section! {
    /// More options of `ws` and `wss` listeners.
    pub struct WsOptions at [Fixed("listeners"), OneOf(WS_KINDS), Any("name")] {
        /// Path of the WebSocket URL.
        restart path: String = "/mqtt";
        /// Origins that web pages may connect from, such as "https://example.com"; "*" is any. Pages of the host that they
        /// connect to may without, if that is `localhost` or an address. Clients that are no browsers send no origin and are
        /// not concerned.
        restart allowed_origins: Vec<String> = "";
    }
}
