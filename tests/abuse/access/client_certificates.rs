//! Client certificates that name the client, certificates that must not, and revocation lists. The tests generate all
//! certificates.

use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DistinguishedName, DnType,
    DnValue, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SanType, date_time_ymd,
};

use serde_json::json;

use crate::support::api::Api;
use crate::support::*;

/// The password of admin is `pencil`.
const USERS: &str = "\
admin:$scram-sha-256$i=4096$W22ZaJ0SNY7soEsUEjb6gQ$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY$wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU:superuser
bob:$scram-sha-256$i=4096$W22ZaJ0SNY7soEsUEjb6gQ$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY$wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU
";
/// Each client may publish below its own names, and admin below a topic of its own.
const RULES: &str = "rules = [\n\
    { permission = \"allow\", action = \"all\", topics = [\"u/%u/c/%c/#\"] },\n\
    { permission = \"allow\", action = \"publish\", topics = [\"admin/#\"], users = [\"admin\"] },\n]\n";

pub struct Authority(pub CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key in PEM format.
pub struct Shown(pub String, pub String);

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    pub fn issue(&self, change: impl FnOnce(&mut CertificateParams)) -> Shown {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Shown(certificate.pem(), key.serialize_pem())
    }

    /// Returns a revocation list in PEM format that is valid until the end of a year.
    fn revoke(&self, serial_numbers: &[u8], last_year: i32) -> String {
        let revoked = serial_numbers.iter().map(|serial| RevokedCertParams {
            serial_number: vec![*serial].into(),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(last_year, 12, 31),
            crl_number: vec![1].into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.0).expect("a revocation list");
        list.pem().expect("a revocation list in PEM format")
    }

    pub fn named(&self, common_name: &str) -> Shown {
        self.issue(|params| params.distinguished_name.push(DnType::CommonName, utf8(common_name)))
    }
}

pub fn utf8(text: &str) -> DnValue {
    DnValue::Utf8String(text.to_owned())
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().expect("ASCII"))
}

pub struct World {
    pub server: Server,
    port: u16,
}

impl World {
    /// Starts a server with a TLS listener that requires client certificates of the authority.
    pub fn new(authority: &Authority, access: &str, listener: &str) -> World {
        World::with_files(authority, access, listener, &[])
    }

    pub fn with_files(authority: &Authority, access: &str, listener: &str, files: &[(&'static str, String)]) -> World {
        let bind = free_port();
        let Shown(certificate, key) = authority.issue(|params| {
            params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
        });
        let toml = format!(
            "[access]\nanonymous = \"never\"\nmax_login_failures = 1000\npassword_file = \"{{dir}}/users\"\n{access}{RULES}\
             [listeners.tls.clients]\nbind = \"{bind}\"\ncert_file = \"{{dir}}/cert.pem\"\nkey_file = \"{{dir}}/key.pem\"\n\
             ca_file = \"{{dir}}/ca.pem\"\nverify_client = \"required\"\n{listener}"
        );
        let config = Config::new(toml)
            .file("users", USERS)
            .file("cert.pem", certificate)
            .file("key.pem", key)
            .file("ca.pem", authority.0.pem());
        let config = files
            .iter()
            .fold(config, |config, (name, text)| config.file(name, text.clone()));
        World {
            server: Server::start(&config),
            port: bind.port(),
        }
    }

    fn run(&self, command: &str, shown: Option<&Shown>, more: &[&str]) -> bool {
        let dir = self.server.dir();
        let mut tidewire = Command::new(env!("CARGO_BIN_EXE_tidewire"));
        tidewire
            .args([command, "-h", "127.0.0.1", "-V", "mqttv5", "-q", "1", "-p"])
            .arg(self.port.to_string())
            .arg("--cafile")
            .arg(dir.join("ca.pem"))
            .args(more);
        if let Some(Shown(certificate, key)) = shown {
            let path = dir.join(unique("shown"));
            std::fs::write(&path, format!("{certificate}{key}")).expect("the directory is writable");
            tidewire.arg("--cert").arg(&path).arg("--key").arg(&path);
        }
        let done = tidewire.output().expect("the program runs");
        println!("{}", String::from_utf8_lossy(&done.stderr));
        done.status.success()
    }

    /// Returns whether the client may publish to a topic.
    pub fn publishes(&self, shown: &Shown, topic: &str, more: &[&str]) -> bool {
        self.run("pub", Some(shown), &[&["-t", topic, "-m", "x"], more].concat())
    }

    /// Returns whether the client has this user name and client id.
    pub fn is_known_as(&self, shown: &Shown, user_name: &str, client_id: &str, more: &[&str]) -> bool {
        self.publishes(shown, &format!("u/{user_name}/c/{client_id}/x"), more)
    }

    /// Returns the text of the list of refused clients.
    pub fn refused(&self) -> String {
        Api::of(&self.server).get("/api/v1/refused-clients").to_string()
    }
}

pub const PROVIDERS: &str = "providers = [\"certificate\", \"users\"]\n";
pub const BY_NAME: &str = "peer_cert_as_user_name = \"cn\"\n";
const BY_BOTH: &str = "peer_cert_as_user_name = \"cn\"\npeer_cert_as_client_id = \"san_dns\"\n";

#[test]
fn certificate_names_user_and_client() {
    let authority = Authority::new();
    let world = World::new(&authority, PROVIDERS, BY_BOTH);
    let meter = authority.issue(|params| {
        params.distinguished_name.push(DnType::CommonName, utf8("Zähler 17"));
        params.subject_alt_names = vec![dns("meter-17.example")];
    });
    for more in [
        &[][..],
        &["-i", "another", "-u", "bob"],
        &["-i", "another", "-u", "admin", "-P", "wrong"],
        &["-u", "admin", "-P", "pencil"],
    ] {
        assert!(
            world.is_known_as(&meter, "Zähler 17", "meter-17.example", more),
            "{more:?}"
        );
        assert!(
            !world.is_known_as(&meter, "admin", "meter-17.example", more),
            "{more:?}"
        );
        assert!(!world.is_known_as(&meter, "Zähler 17", "another", more), "{more:?}");
        assert!(!world.publishes(&meter, "admin/x", more), "{more:?}");
    }
}

#[test]
fn each_field_can_be_the_user_name() {
    let authority = Authority::new();
    let meter = authority.issue(|params| {
        params
            .distinguished_name
            .push(DnType::OrganizationName, utf8("Example"));
        params.distinguished_name.push(DnType::CommonName, utf8("meter"));
        params.serial_number = Some(vec![0x0A, 0xFF].into());
        params.subject_alt_names = vec![
            dns("meter.example"),
            SanType::URI("urn:uuid:17".try_into().expect("ASCII")),
            SanType::Rfc822Name("meter@example.com".try_into().expect("ASCII")),
        ];
    });
    let pem = &meter.0;
    let base64: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let der = <base64ct::Base64 as base64ct::Encoding>::decode_vec(&base64).expect("PEM");
    let digest = ring::digest::digest(&ring::digest::SHA256, &der);
    let fingerprint: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    for (field, expected) in [
        ("dn", "CN=meter,O=Example"),
        ("serial", "0aff"),
        ("fingerprint", &fingerprint),
        ("san_uri", "urn:uuid:17"),
        ("san_email", "meter@example.com"),
    ] {
        let listener = format!("peer_cert_as_user_name = \"{field}\"\n");
        let world = World::new(&authority, PROVIDERS, &listener);
        assert!(
            world.is_known_as(&meter, expected, "chosen", &["-i", "chosen"]),
            "{field}"
        );
    }
}

#[test]
fn certificate_without_a_clear_name_is_refused() {
    let authority = Authority::new();
    let world = World::new(&authority, PROVIDERS, BY_BOTH);
    let issue = |common_name: Option<&str>, names: &[&str]| {
        authority.issue(|params| {
            if let Some(common_name) = common_name {
                params.distinguished_name.push(DnType::CommonName, utf8(common_name));
            }
            params.subject_alt_names = names.iter().map(|name| dns(name)).collect();
        })
    };
    for (case, shown) in [
        ("no common name", issue(None, &["a"])),
        ("no alternative name", issue(Some("meter"), &[])),
        ("two alternative names", issue(Some("meter"), &["a", "b"])),
        ("NUL", issue(Some("admin\0.evil"), &["a"])),
        ("an invisible character", issue(Some("admin\u{200b}"), &["a"])),
        ("reversed text", issue(Some("\u{202e}nimda"), &["a"])),
        ("an empty name", issue(Some(""), &["a"])),
        ("a long name", issue(Some(&"x".repeat(1025)), &["a"])),
    ] {
        assert!(
            !world.publishes(&shown, "admin/x", &["-u", "admin", "-P", "pencil"]),
            "{case}"
        );
    }
    let refused = world.refused();
    for reason in [
        "does not have the field",
        "several times",
        "characters that are not allowed",
    ] {
        assert!(refused.contains(reason), "{reason}: {refused}");
    }
    assert!(world.is_known_as(&issue(Some("meter"), &["a"]), "meter", "a", &[]));
}

#[test]
fn certificate_must_be_valid() {
    let authority = Authority::new();
    let world = World::new(&authority, PROVIDERS, BY_NAME);
    let expired = authority.issue(|params| {
        params.distinguished_name.push(DnType::CommonName, utf8("meter"));
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    let early = authority.issue(|params| {
        params.distinguished_name.push(DnType::CommonName, utf8("meter"));
        params.not_before = date_time_ymd(2090, 1, 1);
    });
    let id = ["-i", "c"];
    assert!(world.is_known_as(&authority.named("meter"), "meter", "c", &id));
    for shown in [&expired, &early, &Authority::new().named("meter")] {
        assert!(!world.is_known_as(shown, "meter", "c", &id));
    }
    assert!(!world.run(
        "pub",
        None,
        &["-t", "u/bob/c/c/x", "-m", "x", "-i", "c", "-u", "bob", "-P", "pencil"]
    ));
}

/// A certificate authority must not be able to make superusers.
#[test]
fn name_of_a_superuser_gives_no_rights_of_a_superuser() {
    let authority = Authority::new();
    let world = World::new(&authority, PROVIDERS, BY_NAME);
    let admin = authority.named("admin");
    // The access rules of the name apply.
    assert!(world.publishes(&admin, "admin/x", &[]));
    for more in [&[][..], &["-u", "admin", "-P", "pencil"]] {
        assert!(!world.publishes(&admin, "elsewhere", more));
    }
    assert!(
        world
            .server
            .session(&Connect::new(V5, unique("admin")).user("admin", "pencil"))
            .publish(&Publish::new("elsewhere", "x").qos(1))
            < 0x80
    );
}

#[test]
fn without_the_provider_a_password_is_needed() {
    let authority = Authority::new();
    let world = World::new(&authority, "", BY_NAME);
    let (bob, admin) = (authority.named("bob"), authority.named("admin"));
    let id = ["-i", "c"];
    assert!(!world.is_known_as(&bob, "bob", "c", &id));
    assert!(!world.is_known_as(&bob, "bob", "c", &["-i", "c", "-u", "bob", "-P", "wrong"]));
    // The password is that of the user in the certificate.
    assert!(world.is_known_as(&bob, "bob", "c", &["-i", "c", "-u", "nobody", "-P", "pencil"]));
    assert!(!world.publishes(&bob, "elsewhere", &["-u", "admin", "-P", "pencil"]));
    assert!(world.publishes(&admin, "elsewhere", &["-u", "bob", "-P", "pencil"]));
    assert!(!world.is_known_as(
        &authority.named("carol"),
        "carol",
        "c",
        &["-i", "c", "-u", "bob", "-P", "pencil"]
    ));
}

/// The client id of the certificate chooses the thread that owns the session, whatever CONNECT contains.
#[test]
fn client_id_of_the_certificate_is_one_session() {
    let authority = Authority::new();
    let world = World::new(
        &authority,
        PROVIDERS,
        "peer_cert_as_user_name = \"cn\"\npeer_cert_as_client_id = \"cn\"\n",
    );
    let api = Api::of(&world.server);
    for meter in 0..4 {
        let name = format!("meter-{meter}");
        let shown = authority.named(&name);
        for id in 0..4 {
            let (filter, id) = (format!("u/{name}/c/{name}/#"), format!("chosen-{id}"));
            let arguments = ["-t", &filter, "-E", "-c", "-x", "300", "-i", &id];
            assert!(world.run("sub", Some(&shown), &arguments));
        }
        let listed = api.get(&format!("/api/v1/clients?client_id={name}"));
        let listed = listed["items"].as_array().expect("a page").clone();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(
            (&listed[0]["client_id"], &listed[0]["user_name"]),
            (&name.as_str().into(), &name.as_str().into())
        );
    }
    assert!(
        !api.get("/api/v1/clients?client_id=chosen")
            .to_string()
            .contains("chosen-")
    );
}

#[test]
fn contradicting_options_are_refused() {
    let check = |toml: &str| {
        let path = std::env::temp_dir().join(unique(&format!("certificates-{}.toml", std::process::id())));
        std::fs::write(&path, toml).expect("the directory is writable");
        let done = Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .arg("check")
            .arg("--config")
            .arg(&path)
            .output();
        let done = done.expect("the program runs");
        std::fs::remove_file(&path).expect("the file was just written");
        format!(
            "{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        )
    };
    let listener = "[listeners.tls.a]\nbind = \"127.0.0.1:1\"\ncert_file = \"a\"\nkey_file = \"a\"\n";
    for (toml, expected) in [
        (
            "[access]\nproviders = [\"certificate\"]\n".to_owned(),
            "needs a listener with `peer_cert_as_user_name`",
        ),
        (
            "[access]\nproviders = [\"users\", \"certificate\"]\n".to_owned(),
            "must be the first provider",
        ),
        (format!("{listener}{BY_NAME}"), "needs client certificates"),
        (
            "[access]\nproviders = []\nscram = [\"SCRAM-SHA-256\"]\n".to_owned(),
            "needs the provider `users`",
        ),
    ] {
        let output = check(&toml);
        assert!(output.contains(expected), "{toml}\n{output}");
    }
}

/// The server reads the list again when it receives SIGHUP. A list that it cannot use does not replace a good one.
#[test]
fn revoked_certificates_are_refused() {
    let authority = Authority::new();
    let issue = |name: &str, serial: u8| {
        authority.issue(|params| {
            params.distinguished_name.push(DnType::CommonName, utf8(name));
            params.serial_number = Some(vec![serial].into());
        })
    };
    let (one, two) = (issue("one", 1), issue("two", 2));
    // `missing` is only for downloads: it does not weaken the check of a file.
    let listener = format!("{BY_NAME}crl_file = \"{{dir}}/revoked.pem\"\n[tls.crl]\nmissing = \"allow\"\n");
    let files = [("revoked.pem", authority.revoke(&[1], 2099))];
    let world = World::with_files(&authority, PROVIDERS, &listener, &files);
    let is_admitted = |shown: &Shown, name: &str| world.is_known_as(shown, name, "c", &["-i", "c"]);
    assert!(!is_admitted(&one, "one") && is_admitted(&two, "two"));
    let reload = |list: &str, expected: &str| {
        let lines_before = world.server.log().matches(expected).count();
        std::fs::write(world.server.dir().join("revoked.pem"), list).expect("the directory is writable");
        let kill = Command::new("kill")
            .args(["-HUP", &world.server.pid().to_string()])
            .status();
        assert!(kill.expect("kill runs").success());
        let deadline = std::time::Instant::now() + PATIENCE;
        while world.server.log().matches(expected).count() == lines_before {
            assert!(std::time::Instant::now() < deadline, "{}", world.server.log());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    const DONE: &str = "configuration reloaded";
    reload(&authority.revoke(&[2], 2099), DONE);
    assert!(is_admitted(&one, "one") && !is_admitted(&two, "two"));
    for unusable in ["", "not PEM", &authority.0.pem()] {
        reload(unusable, "contains no certificate revocation list");
        assert!(is_admitted(&one, "one") && !is_admitted(&two, "two"), "{unusable:.20}");
    }
    // A list that has expired, and one of another authority, deny all certificates.
    let file = world.server.dir().join("revoked.pem").display().to_string();
    let api = Api::of(&world.server);
    let has_alarm = || api.get("/api/v1/alarms").to_string().contains(&format!("crl:{file}"));
    let remaining_seconds = || {
        let (_, metrics) = world.server.http_get("/metrics");
        let name = format!("tidewire_certificates_list_remaining_seconds{{url=\"{file}\"}} ");
        let value = metrics
            .lines()
            .find_map(|line| line.strip_prefix(&name)?.parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("{metrics}"))
    };
    assert!(!has_alarm() && remaining_seconds() > 0.0);
    for list in [Authority::new().revoke(&[2], 2099), authority.revoke(&[2], 2021)] {
        reload(&list, DONE);
        assert!(!is_admitted(&one, "one") && !is_admitted(&two, "two"));
    }
    assert!(remaining_seconds() < 0.0);
    world.server.wait_until("an alarm", |_| has_alarm());
}

/// The rules are set at run time. Bob logs in with a password, so that the certificate says nothing else about him.
#[test]
fn access_rules_can_name_certificates() {
    let authority = Authority::new();
    let world = World::new(&authority, "", "");
    let api = Api::of(&world.server);
    let rules = json!({"rules": [
        {"permission": "allow", "action": "publish", "topics": ["named"], "certificate_names": ["meter-1", "meter-2"]},
        {"permission": "allow", "action": "publish", "topics": ["exact"], "certificate_subjects": ["CN=meter-1"]},
    ]});
    api.ok("PUT", "/api/v1/acl", &rules);
    assert_eq!(api.get("/api/v1/acl")["rules"], rules["rules"]);
    let bob = ["-u", "bob", "-P", "pencil"];
    for (name, topics) in [
        ("meter-1", &["named", "exact"][..]),
        ("meter-2", &["named"]),
        ("meter-3", &[]),
    ] {
        let shown = authority.named(name);
        for topic in ["named", "exact"] {
            assert_eq!(
                world.publishes(&shown, topic, &bob),
                topics.contains(&topic),
                "{name} {topic}"
            );
        }
    }
    for (certificate_name, is_allowed) in [("meter-1", true), ("meter-3", false)] {
        let question = json!({"action": "publish", "topic": "named", "certificate_name": certificate_name});
        let answer = api.ok("POST", "/api/v1/acl/test", &question);
        assert_eq!(answer["is_allowed"], is_allowed, "{answer}");
    }
}

#[test]
fn attributes_come_from_the_certificate() {
    let authority = Authority::new();
    let attributes = "[access.client_attrs]\nnumber = \"regex_extract(cn, '^meter-([0-9]+)$')\"\n";
    let world = World::new(&authority, "", attributes);
    let rule = json!({"permission": "allow", "action": "publish", "topics": ["m/${client_attrs.number}/#"]});
    Api::of(&world.server).ok("PUT", "/api/v1/acl", &json!({"rules": [rule]}));
    for (name, topic, is_allowed) in [
        ("meter-1", "m/1/x", true),
        ("meter-1", "m/2/x", false),
        ("meter-+", "m/1/x", false),
        ("gate-1", "m/1/x", false),
        ("gate-1", "m//x", false),
    ] {
        let shown = authority.named(name);
        // The name in CONNECT is another one.
        let bob = ["-u", "bob", "-P", "pencil", "-i", "meter-2"];
        assert_eq!(world.publishes(&shown, topic, &bob), is_allowed, "{name} {topic}");
    }
}
