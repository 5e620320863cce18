//! Options of the authentication provider `http`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use connectors::Secret;

use super::groups::provider_section;
use crate::config::key::KeySegment::Fixed;
use crate::config::option::{Apply, Kind, OptionDef, Section};
use crate::config::value::{Unset, choice};

choice! {
    /// Method of the requests.
    pub enum HttpAccessMethod { Post = "post", Get = "get" }
}

choice! {
    /// Format of the body of a POST request.
    pub enum HttpAccessBody { Json = "json", Form = "form" }
}

choice! {
    /// The part of an answer that decides.
    pub enum HttpAccessAnswer { Json = "json", Status = "status" }
}

/// All options of the provider.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpAccessConfig {
    pub options: HttpAccess,
    pub headers: BTreeMap<String, Secret>,
    pub body: BTreeMap<String, String>,
}

provider_section! {
    /// Authentication by an HTTP service. The provider asks the service if `access.providers` contains `http`.
    pub struct HttpAccess at [Fixed("access"), Fixed("http")] {
        /// URL of the service, for example `https://auth.example.org/mqtt/${clientid}?user=${username}`. Path and query
        /// may contain placeholders: `${username}`, `${password}`, `${clientid}`, `${peerhost}`, `${cert_common_name}`
        /// and `${cert_subject}`. Values are percent-encoded. The URL is shown to administrators: put secrets into
        /// `headers`.
        restart url: String = "";
        /// Method of the requests: `post`, or `get`, which adds the fields of `body` to the query. Servers usually
        /// write the query to their log: use `post` for passwords.
        restart method: HttpAccessMethod = "post";
        /// Format of the body of a POST request: `json`, an object with strings, or `form`
        /// (`application/x-www-form-urlencoded`).
        restart body_format: HttpAccessBody = "json";
        /// The part of an answer that decides: `json`, the body of an answer with the status 200, as in EMQX; or
        /// `status`, the status alone, as in mosquitto-go-auth: 200 admits the client, 400 to 499 leave it to the next
        /// provider.
        restart answer: HttpAccessAnswer = "json";
        /// Trusted certificate authorities for `https`, as PEM. Empty: those of the operating system.
        restart ca_file: Unset<PathBuf> = "";
        /// Client certificate for `https`, as PEM.
        restart cert_file: Unset<PathBuf> = "";
        /// Private key of the client certificate, as PEM.
        restart key_file: Unset<PathBuf> = "";
        /// Verifies the certificate of the service. Without verification, an attacker on the network path can read
        /// passwords and admit clients.
        restart verify: bool = "true";
    } + limits
}

/// A table with free keys, so not a struct.
pub const HEADERS: Section = Section {
    path: &[Fixed("access"), Fixed("http"), Fixed("headers")],
    doc: &[" Headers of the requests to the service of `access.http`. The values are never shown."],
    options: &[OptionDef {
        name: "<header>",
        doc: &[" Value, which may contain the placeholders of `access.http.url`."],
        default: "",
        range: None,
        unit: None,
        apply: Apply::Restart,
        kind: Kind::of::<Secret>(),
    }],
};

/// A table with free keys, so not a struct.
pub const BODY: Section = Section {
    path: &[Fixed("access"), Fixed("http"), Fixed("body")],
    doc: &[" Fields of the body of the requests to the service of `access.http`."],
    options: &[OptionDef {
        name: "<field>",
        doc: &[
            " Value, which may contain the placeholders of `access.http.url`, for example `password = \"${password}\"`. A",
            " value that the client does not have is empty.",
        ],
        default: "",
        range: None,
        unit: None,
        apply: Apply::Restart,
        kind: Kind::of::<String>(),
    }],
};
