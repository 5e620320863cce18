//! Clients whose passwords are in an LDAP directory, with OpenLDAP and the real binary.
//!
//! `faults` has the tests with directories that fail, are slow or change.

mod faults;
mod logins;
pub mod tls;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::rules::real_servers::Started;
use crate::support::*;

/// Codes of a CONNACK.
const ADMITTED: u8 = 0;
const WRONG: u8 = 0x86;
const NOT_AUTHORIZED: u8 = 0x87;
const UNAVAILABLE: u8 = 0x88;

/// `{SSHA}` of `secret`, as `slappasswd` writes it.
const SECRET: &str = "{SSHA}FFDfDV7GJnRHFkOzlIA4D2IT97tWuir/";

/// User `ann` of the server itself, the next provider, with the password `local`: SHA-256 of `saltlocal`.
const NEXT_PROVIDER: &str = "ann = \"$sha256$salt$b59b7ac2be21b3e64c40079c89466f265f0b53252b947544337412cba708ce7f\"";

/// An OpenLDAP with the users and rights that `dev/ldap` describes.
struct Directory {
    server: Started,
}

impl Directory {
    fn new() -> Directory {
        Directory {
            server: Started::new("ldap", &[]),
        }
    }

    fn url(&self) -> String {
        format!("ldap://{}", self.server.address)
    }

    /// Runs `ldapmodify` as the administrator with this LDIF.
    fn change(&self, ldif: &str) {
        let mut command = Command::new("ldapmodify");
        command.args([
            "-x",
            "-H",
            &self.url(),
            "-D",
            "cn=admin,dc=example,dc=org",
            "-w",
            "admin",
        ]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let process = process.as_mut().expect("ldapmodify is installed: dev/setup.sh test");
        let mut input = process.stdin.take().expect("it is piped");
        input.write_all(ldif.as_bytes()).expect("ldapmodify reads its input");
        drop(input);
        assert!(process.wait().expect("it ends").success(), "{ldif}");
    }

    /// Adds a device with more lines of its entry.
    fn add(&self, uid: &str, password: &str, more: &str) {
        self.change(&format!(
            "dn: uid={uid},ou=devices,dc=example,dc=org\nchangetype: add\nobjectClass: inetOrgPerson\n\
             objectClass: mqttUser\nuid: {uid}\ncn: device {uid}\nsn: device\nuserPassword: {password}\n{more}\n"
        ));
    }

    fn add_group(&self, place: &str, name: &str, member: &str) {
        self.change(&format!(
            "dn: cn={name},{place},dc=example,dc=org\nchangetype: add\nobjectClass: groupOfNames\ncn: {name}\n\
             member: uid={member},ou=devices,dc=example,dc=org\n"
        ));
    }

    fn start(&self, more: &[(&str, &str)]) -> Server {
        Server::start(&Config::new(options(&[self.url()], more)))
    }
}

/// Options of a server whose clients are in a directory and then in `access.users`. Only superusers may subscribe to
/// `closed/#`, and only members of groups to their topics.
fn options(servers: &[String], more: &[(&str, &str)]) -> String {
    let mut text = format!(
        "[access]\nanonymous = \"never\"\nproviders = [\"ldap\", \"users\"]\nmax_login_failures = 0\n\
         rules = [{{ permission = \"deny\", action = \"subscribe\", topics = [\"closed/#\"] }}, \
         {{ permission = \"allow\", action = \"all\", topics = [\"${{client_attrs.groups.plant-a}}/#\", \
         \"t/${{client_attrs.tenant}}/#\", \"u/%u\"] }}]\n\
         [access.users]\n{NEXT_PROVIDER}\n[access.ldap]\nservers = {servers:?}\n"
    );
    let defaults = [
        ("base_dn", "'ou=devices,dc=example,dc=org'"),
        ("user", "'cn=mqtt,dc=example,dc=org'"),
        ("password", "'mqtt'"),
    ];
    let is_default = |(name, _): &&(&str, &str)| !more.iter().any(|(other, _)| other == name);
    // Tables follow the values.
    let (tables, values): (Vec<_>, Vec<_>) = more.iter().partition(|(name, _)| name.starts_with('['));
    for (name, value) in defaults.iter().filter(is_default).chain(values) {
        writeln!(text, "{name} = {value}").expect("a string grows");
    }
    for (name, value) in tables {
        writeln!(text, "{name}\n{value}").expect("a string grows");
    }
    text
}

fn login(server: &Server, name: impl AsRef<[u8]>, password: impl AsRef<[u8]>) -> u8 {
    let connect = Connect::new(V5, unique("client")).user(name, password);
    server.connect().handshake(&connect).code
}

/// Whether a client may subscribe to a topic.
fn may_subscribe(server: &Server, name: &str, password: &str, topic: &str) -> bool {
    let mut client = server.session(&Connect::new(V5, unique("client")).user(name, password));
    client.subscribe_code(topic, 0) == 0
}
