//! Options of listeners. All kinds share the first section; TLS, WebSocket and QUIC add one each. QUIC also has the
//! section of TLS.

use std::path::PathBuf;
use std::time::Duration;

use auth::Cidr;

use crate::config::address::Bind;
use crate::config::key::KeySegment::{Any, Fixed, OneOf};
use crate::config::mountpoint::MountpointTemplate;
use crate::config::option::section;
use crate::config::options::access::ProviderKind;
use crate::config::units::{ByteRate, ByteSize, Rate};
use crate::config::value::{Limit, Switch, Unset, choice};

choice! {
    pub enum ListenerKind { Tcp = "tcp", Tls = "tls", Ws = "ws", Wss = "wss", Quic = "quic" }
}

pub const KINDS: &[&str] = &["tcp", "tls", "ws", "wss", "quic"];
pub const TLS_KINDS: &[&str] = &["tls", "wss", "quic"];
pub const WS_KINDS: &[&str] = &["ws", "wss"];

/// Name of MQTT on the port of the API among the listeners. A WebSocket listener cannot have this name.
pub const API_LISTENER: &str = "api";

impl ListenerKind {
    pub const ALL: [ListenerKind; 5] = [
        ListenerKind::Tcp,
        ListenerKind::Tls,
        ListenerKind::Ws,
        ListenerKind::Wss,
        ListenerKind::Quic,
    ];

    pub const fn has_tls(self) -> bool {
        matches!(self, ListenerKind::Tls | ListenerKind::Wss | ListenerKind::Quic)
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
            ListenerKind::Quic => 14567,
        }
    }

    /// Scheme of the URL for clients.
    pub const fn scheme(self) -> &'static str {
        match self {
            ListenerKind::Tcp => "mqtt",
            ListenerKind::Tls => "mqtts",
            ListenerKind::Ws => "ws",
            ListenerKind::Wss => "wss",
            ListenerKind::Quic => "quic",
        }
    }
}

choice! {
    /// Whether connections begin with a PROXY protocol header.
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

choice! {
    /// Field of a client certificate that names the client.
    pub enum PeerName {
        Off = "off",
        CommonName = "cn",
        Subject = "dn",
        Serial = "serial",
        Fingerprint = "fingerprint",
        SanDns = "san_dns",
        SanUri = "san_uri",
        SanEmail = "san_email",
    }
}

section! {
    /// Listeners for clients. Each kind can have any number of listeners, and each has a name:
    /// `[listeners.tcp.default]`, `[listeners.tcp.lan]`. `tcp.default` (1883) and `ws.default` (8083) exist unless
    /// they are disabled. `tls.default` (8883) and `wss.default` (8084) exist if `tls.cert_file`, `tls.acme.domains`
    /// or their own certificate is set. A `quic` listener (MQTT over QUIC, UDP) exists only if it is configured; the
    /// port of `quic.default` is 14567.
    pub struct ListenerOptions at [Fixed("listeners"), OneOf(KINDS), Any("name")] {
        /// Enables the listener.
        restart enabled: bool = "true";
        /// Address and port. A port alone means all IPv4 interfaces; "[::]:1883" means all interfaces. If a host name
        /// has several addresses, the server uses the first: `localhost` can be 127.0.0.1 or [::1]. Default ports of
        /// listeners named `default`: 1883 (tcp), 8883 (tls), 8083 (ws), 8084 (wss) and 14567 (quic, UDP).
        restart bind: Bind = "0.0.0.0:1883";
        /// Maximum number of connections on this listener.
        restart max_connections: Limit<u64> = "unlimited" ["1", "100000000"] in "connections";
        /// Maximum rate of new connections: "100/s", or "600/m", which allows a burst of 600. The server resets and
        /// counts further connections.
        restart max_connection_rate: Limit<Rate> = "unlimited";
        /// Maximum publish rate of all connections of this listener together, as `limits.publish_rate`. The server
        /// reads from them in turns.
        live max_publish_rate: Switch<Rate> = "off";
        /// Maximum number of bytes of PUBLISH packets per time from all connections of this listener together, as
        /// `limits.publish_bytes`.
        live max_publish_bytes: Switch<ByteRate> = "off";
        /// Time from accepting a connection to a complete CONNECT, including TLS and WebSocket handshakes.
        restart handshake_timeout: Duration = "10s" ["100ms", "10m"];
        /// Number of connections that the kernel queues until the server accepts them. Not for `quic`.
        restart backlog: u32 = "1024" ["1", "65535"] in "connections";
        /// Maximum packet size on this listener if it is smaller than `mqtt.max_packet_size`.
        restart max_packet_size: Unset<ByteSize> = "" ["20B", "256MiB"];
        /// Authentication providers of clients of this listener, in the order in which they are asked. Empty:
        /// `access.providers`.
        restart providers: Vec<ProviderKind> = "";
        /// Prefix of all topics of the clients of this listener, such as `tenants/${client_attrs.tenant}/`. The server
        /// adds it to the topics of PUBLISH, SUBSCRIBE, UNSUBSCRIBE and wills, after `$share/NAME/`, `$queue/`,
        /// `$exclusive/` and `$delayed/SECONDS/`, and removes it from the topics that it sends to the client. It must
        /// end with `/`. Placeholders: `${username}`, `${clientid}`, and `${client_attrs.NAME}` for an attribute that
        /// an authentication provider has returned. The server rejects a client (0x87) whose value is missing, empty,
        /// or contains `+`, `#`, `/` or control characters. Devices of the platform have no prefix.
        restart mountpoint: Unset<MountpointTemplate> = "";
        /// Whether every connection begins with a PROXY protocol header, version 1 or 2: `off` or `on`. Not for `quic`.
        restart proxy_protocol: ProxyProtocol = "off";
        /// Addresses or networks that may send this header. Required with `proxy_protocol`, because the header can
        /// contain any address, including loopback.
        restart proxy_protocol_trusted: Vec<Cidr> = "";
    }
}

section! {
    /// Certificates of all `tls`, `wss` and `quic` listeners. A listener can have its own. Changes apply to new
    /// connections.
    pub struct TlsDefaults at [Fixed("tls")] {
        /// Certificate chain (PEM). Setting it enables the `tls` and `wss` listeners named `default`.
        live cert_file: Unset<PathBuf> = "";
        /// Private key of the certificate (PEM), not encrypted.
        live key_file: Unset<PathBuf> = "";
        /// Certificate authorities of client certificates (PEM).
        live ca_file: Unset<PathBuf> = "";
        /// Allowed cipher suites, in the order of preference, with their names in the IANA registry
        /// (`TLS_AES_128_GCM_SHA256`) or in OpenSSL (`ECDHE-RSA-AES128-GCM-SHA256`). Empty: all suites of the server,
        /// which are all secure. The error of a wrong name lists them. A client chooses with its own order of
        /// preference.
        live cipher_suites: Vec<String> = "";
        /// How often the server looks whether another program has replaced certificates, keys, `ca_file` or `crl_file`
        /// of listeners and of the API. New connections use the new files once these were the same at two looks, so
        /// that no half of a pair is read. `0s`: only after a reload.
        restart reload_interval: Duration = "1m" ["0s", "7d"];
    }
}

section! {
    /// Additional options of `tls`, `wss` and `quic` listeners. Changes apply to new connections.
    pub struct TlsOptions at [Fixed("listeners"), OneOf(TLS_KINDS), Any("name")] {
        /// Certificate chain (PEM). Empty: `tls.cert_file`.
        live cert_file: Unset<PathBuf> = "";
        /// Private key of the certificate (PEM), not encrypted. Empty: `tls.key_file`.
        live key_file: Unset<PathBuf> = "";
        /// Whether handshakes contain an OCSP response of the authority about the certificate of the server (OCSP
        /// stapling), for clients that ask for it. The server obtains the response in the background and stores it in
        /// the data directory. Without a valid response, handshakes continue without one. `tls.ocsp` has the interval.
        live ocsp_stapling: bool = "false";
        /// URL (`http` or `https`) of the OCSP responder. Empty: the URL in the certificate (Authority Information
        /// Access). Requires `ocsp_stapling`.
        live ocsp_responder_url: Unset<String> = "";
        /// Certificate of the issuer (PEM), with which responses are verified. Empty: it follows the certificate of the
        /// server in `cert_file`. Requires `ocsp_stapling`.
        live ocsp_issuer_file: Unset<PathBuf> = "";
        /// Certificate authorities of client certificates (PEM). Empty: `tls.ca_file`.
        live ca_file: Unset<PathBuf> = "";
        /// Whether clients must present a certificate: `none`, `optional` (a presented certificate must be valid) or
        /// `required`. The certificate alone does not replace authentication: the client still needs a user name and
        /// password, or is anonymous (`access.anonymous`). See `peer_cert_as_user_name`.
        live verify_client: VerifyClient = "none";
        /// Revocation lists (CRL, PEM) of the authorities in `ca_file` and of their intermediate authorities. The
        /// server rejects revoked certificates, and all certificates of an authority whose list is missing or has
        /// expired. A changed file is used soon (`tls.reload_interval`). TLS sessions are not resumed. Requires
        /// `verify_client`.
        live crl_file: Unset<PathBuf> = "";
        /// URLs (`http` or `https`) of revocation lists that the server downloads, in addition to `crl_file`: usually
        /// the distribution points of the authorities in `ca_file`. A list is stored in the data directory, and the
        /// stored one is used until a new one has arrived. The server rejects a list whose authority another URL
        /// already serves. `tls.crl` has the intervals and limits, and decides about missing lists. The server never
        /// fetches a URL that a client's certificate contains. Requires `verify_client`.
        live crl_urls: Vec<String> = "";
        /// Field of the client certificate that becomes the user name, in place of that in CONNECT: `cn` (common name),
        /// `dn` (subject as in RFC 4514), `serial`, `fingerprint` (SHA-256 in hexadecimal), `san_dns`, `san_uri` or
        /// `san_email` (alternative name), or `off`. The server rejects a certificate that does not have the field
        /// exactly once. Requires `verify_client`. With `optional`, clients without a certificate have the user name of
        /// CONNECT. To let the certificate replace the password, add `certificate` to `access.providers`.
        restart peer_cert_as_user_name: PeerName = "off";
        /// Field of the client certificate that becomes the client ID, as in `peer_cert_as_user_name`. The client ID in
        /// CONNECT is ignored.
        restart peer_cert_as_client_id: PeerName = "off";
        /// Minimum TLS version: "1.2" or "1.3". QUIC always uses TLS 1.3.
        live min_tls_version: TlsVersion = "1.2";
        /// Allowed cipher suites. Empty: `tls.cipher_suites`.
        live cipher_suites: Vec<String> = "";
    }
}

section! {
    /// Additional options of `ws` and `wss` listeners.
    pub struct WsOptions at [Fixed("listeners"), OneOf(WS_KINDS), Any("name")] {
        /// Path of the WebSocket URL.
        restart path: String = "/mqtt";
        /// Origins of web pages that may connect, such as "https://example.com"; "*" allows all. Pages of the same
        /// host may always connect if the host is `localhost` or an IP address. Clients that are not browsers send no
        /// origin.
        restart allowed_origins: Vec<String> = "";
        /// Proxies (addresses or networks) whose `X-Forwarded-For` header names the client. A request that another
        /// proxy on this machine has forwarded does not count as coming from loopback (`access.anonymous`).
        restart trusted_proxies: Vec<Cidr> = "";
        /// Maximum size of the request line and the headers of the upgrade. Raise it for web pages with large cookies.
        restart max_request_head: ByteSize = "8KiB" ["1KiB", "64KiB"];
    }
}

section! {
    /// Additional options of `quic` listeners.
    pub struct QuicOptions at [Fixed("listeners"), Fixed("quic"), Any("name")] {
        /// Maximum number of data streams of a connection, in addition to the control stream. A client can publish and
        /// subscribe on data streams, as in the multi-stream mode of EMQX. The server resets further streams. Queues,
        /// output buffers and in-flight messages count per stream. A stream counts as a session of its user. Example:
        /// 8. 0: no data streams.
        restart max_data_streams: u16 = "0" ["0", "64"] in "streams";
    }
}
