//! Users of EMQX that log in with SCRAM. Their verifiers stay as they are.

use auth::PasswordHash;
use base64ct::{Base64Unpadded, Encoding};

use super::term::{Record, Table, Term};
use super::unreadable::Unreadable;
use crate::import::report::{Outcome, Report};
use crate::import::settings::Setting;
use crate::import::setup::Setup;
use crate::journal_command::summary::count;

/// Names of the table. EMQX 5.8 has renamed it.
pub const TABLES: [&str; 2] = ["emqx_authn_scram_mnesia", "emqx_enhanced_authn_scram_mnesia"];
pub const DATABASE: &str = "mnesia/emqx_authn_scram_mnesia";
/// Default of EMQX.
const ITERATIONS: u64 = 4096;

/// Scheme of the verifiers in a password file, and the method in `access.scram`.
type Method = (&'static str, &'static str);

/// Imports the users, unless `other` says why they are left out.
pub fn import(
    authenticator: &Setting<'_>,
    table: Option<&Table>,
    other: Option<&str>,
    setup: &mut Setup,
    report: &Report,
) {
    let method = other.map_or_else(|| method(authenticator), |because| Err(because.to_owned()));
    let (method, iterations) = match (method, table) {
        (Ok(method), Some(_)) => method,
        (Ok(_), None) => {
            authenticator.refuse("the archive does not contain its users, or they cannot be read");
            return;
        }
        (Err(because), _) => {
            authenticator.refuse(&because);
            if let Some(table) = table {
                report.add(
                    DATABASE,
                    0,
                    &count(table.len(), "user"),
                    Outcome::NotSupported { because },
                );
            }
            return;
        }
    };
    let mut imported = 0;
    let mut unreadable = Unreadable::default();
    for record in table.into_iter().flat_map(Table::records) {
        match user(&record, method.0, iterations, setup) {
            Ok(()) => imported += 1,
            Err((Some(name), because)) => {
                report.add(
                    DATABASE,
                    0,
                    &format!("SCRAM user {name}"),
                    Outcome::NotSupported { because },
                );
            }
            Err((None, because)) => unreadable.add(because),
        }
    }
    unreadable.report(DATABASE, "SCRAM user", report);
    if imported > 0 {
        let outcome = Outcome::Changed {
            to: "passwords".to_owned(),
            because: "they can also log in with their password".to_owned(),
        };
        report.add(DATABASE, 0, &count(imported, "SCRAM user"), outcome);
    }
    setup.set("access.scram", &authenticator.path, vec![method.1]);
    authenticator.imported("access.scram");
}

fn method(authenticator: &Setting<'_>) -> Result<(Method, u64), String> {
    let precondition = authenticator.get("precondition");
    if precondition.exists() && !precondition.is("") {
        return Err("the authenticator has a precondition".to_owned());
    }
    let algorithm = authenticator.get("algorithm");
    let method = match algorithm.text() {
        Some("sha256") => ("scram-sha-256", "SCRAM-SHA-256"),
        Some("sha512") => ("scram-sha-512", "SCRAM-SHA-512"),
        None if !algorithm.exists() => ("scram-sha-256", "SCRAM-SHA-256"),
        _ => return Err("its algorithm is neither sha256 nor sha512".to_owned()),
    };
    let iterations = authenticator.get("iteration_count");
    match iterations.number() {
        Some(number) => Ok((method, number)),
        None if !iterations.exists() => Ok((method, ITERATIONS)),
        None => Err("its iteration_count is not a number".to_owned()),
    }
}

/// `{user_info, {Group, Name}, StoredKey, ServerKey, Salt, IsSuperuser}`. The error begins with the name, if it can be
/// read.
fn user(record: &Record<'_>, scheme: &str, iterations: u64, setup: &mut Setup) -> Result<(), (Option<String>, String)> {
    let (group, name) = match record.get("user_id").map(Term::tuple) {
        Some([group, name]) => (group.name().unwrap_or_default(), name.text()),
        _ => ("", None),
    };
    let name = name.ok_or((None, "the name is missing or not UTF-8".to_owned()))?;
    let failed = |because: String| (Some(name.to_owned()), because);
    if group != super::ALL_LISTENERS {
        return Err(failed(format!("it belongs to the listener {group}")));
    }
    let part = |field: &str| match record.get(field) {
        Some(Term::Bytes(bytes)) => Ok(Base64Unpadded::encode_string(bytes)),
        _ => Err(failed(format!("its {field} cannot be read"))),
    };
    let (salt, stored, server) = (part("salt")?, part("stored_key")?, part("server_key")?);
    let text = format!("${scheme}$i={iterations}${salt}${stored}${server}");
    let hash = PasswordHash::parse(&text).map_err(|error| failed(error.to_string()))?;
    let is_superuser = record.get("is_superuser").is_some_and(|flag| flag.is_atom("true"));
    setup.add_user(name, hash, is_superuser).map_err(failed)
}

#[cfg(test)]
mod tests {
    use auth::Password;

    use super::super::term::TermBudget;
    use super::super::term::tests::{atom, table_file, tuple};
    use super::*;
    use crate::import::hocon::Hocon;

    /// Verifier of the password `secret` with the salt `a1b2c3d4` and 4096 iterations, made with Python's hashlib.
    const STORED_KEY: &str = "9e6f84984b36ce92b264d48917dd734ec5416c17c62994af46151bfc2503c6af";
    const SERVER_KEY: &str = "c19d781dc2e211e6998a4e5406531b0368a1432ceedd36a8a3dfb50fcfe5c364";

    fn bytes_of(hex: &str) -> Term {
        let pairs = hex.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).expect("ASCII"), 16).expect("hexadecimal");
        Term::Bytes(pairs.map(byte).collect())
    }

    fn imported(config: &str, group: &str) -> (Setup, String) {
        let text = format!("authentication = [{{mechanism = scram, backend = built_in_database, {config}}}]");
        let hocon = Hocon::parse("cluster.hocon", &text, &|_| Err(String::new())).expect("valid");
        let name = Term::Bytes(b"meter".to_vec());
        let file = table_file(
            TABLES[0],
            &["user_id", "stored_key", "server_key", "salt", "is_superuser"],
            &[vec![
                tuple(&[atom(group), name]),
                bytes_of(STORED_KEY),
                bytes_of(SERVER_KEY),
                Term::Bytes(b"a1b2c3d4".to_vec()),
                atom("false"),
            ]],
        );
        let table = Table::read(TABLES[0], &file, &mut TermBudget::default()).expect("valid");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let root = Setting::root(&hocon, &report);
        for authenticator in root.get("authentication").items() {
            import(&authenticator, Some(&table), None, &mut setup, &report);
        }
        root.finish();
        (setup, report.text("title"))
    }

    #[test]
    fn verifiers_stay_valid() {
        for config in ["algorithm = sha256, iteration_count = 4096", "enable = true"] {
            let (setup, report) = imported(config, "mqtt:global");
            assert!(setup.verifies("meter", &Password::new(b"secret".to_vec())), "{report}");
            assert!(!setup.verifies("meter", &Password::new(b"other".to_vec())));
            assert_eq!(setup.list("access.scram"), ["SCRAM-SHA-256"]);
            assert!(report.contains("they can also log in with their password"), "{report}");
        }
    }

    #[test]
    fn other_scram_users_are_left_out() {
        for (config, group, part) in [
            ("algorithm = md5", "mqtt:global", "neither sha256 nor sha512"),
            (
                "algorithm = sha256, iteration_count = x",
                "mqtt:global",
                "iteration_count",
            ),
            ("precondition = \"x\"", "mqtt:global", "precondition"),
            (
                "algorithm = sha256",
                "tcp:default",
                "it belongs to the listener tcp:default",
            ),
            ("algorithm = sha512", "mqtt:global", "SCRAM user meter"),
        ] {
            let (setup, report) = imported(config, group);
            assert!(report.contains(part), "{config}\n{report}");
            assert!(!setup.verifies("meter", &Password::new(b"secret".to_vec())), "{config}");
        }
    }
}
