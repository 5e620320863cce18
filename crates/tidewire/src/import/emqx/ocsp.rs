//! OCSP stapling of a listener of EMQX, which has the interval and the time limit in each listener.

use connectors::http::Fetcher;

use super::pem::pem;
use crate::import::options::{Form, convert};
use crate::import::settings::Setting;
use crate::import::setup::Setup;

/// Options for all listeners.
const COMMON: [(&str, &str); 2] = [
    ("refresh_interval", "tls.ocsp.refresh_interval"),
    ("refresh_http_timeout", "tls.ocsp.timeout"),
];

/// Imports `ssl_options.ocsp` of the listener `key`. If it cannot be used, the listener works without stapling, which
/// decides about no client.
pub fn import(ocsp: &Setting<'_>, key: &str, setup: &mut Setup) {
    let enable = ocsp.get("enable_ocsp_stapling");
    match enable.flag(false) {
        Ok(true) => {}
        Ok(false) => {
            enable.imported("as in tidewire");
            return ocsp.refuse("OCSP stapling is off");
        }
        Err(_) => return ocsp.refuse("enable_ocsp_stapling is neither true nor false"),
    }
    let (url, issuer) = match read(ocsp) {
        Ok(read) => read,
        Err(because) => return ocsp.refuse_all(&format!("{because}; set ocsp_stapling of {key}")),
    };
    let mut put = |setting: &Setting<'_>, option: &str, value: toml::Value| {
        let option = format!("{key}.{option}");
        setup.set(&option, &setting.path, value);
        setting.imported(&option);
    };
    put(&enable, "ocsp_stapling", true.into());
    if let Some(url) = url {
        put(&ocsp.get("responder_url"), "ocsp_responder_url", url.into());
    }
    if let Some(issuer) = issuer {
        let setting = ocsp.get("issuer_pem");
        let option = format!("{key}.ocsp_issuer_file");
        let file = setup.file(&format!("tls/{}-issuer.pem", key.replace('.', "-")), issuer);
        setup.set(&option, &setting.path, file);
        setting.imported(&option);
    }
    for (theirs, ours) in COMMON {
        common(&ocsp.get(theirs), ours, setup);
    }
}

/// Returns the URL of the responder, and the certificate of the issuer.
fn read<'a>(ocsp: &Setting<'a>) -> Result<(Option<&'a str>, Option<Vec<u8>>), String> {
    let url = ocsp.get("responder_url").filled();
    if let Some(Err(problem)) = url.map(Fetcher::check_url) {
        return Err(format!("responder_url: {problem}"));
    }
    let issuer = ocsp.get("issuer_pem").filled().map(pem).transpose();
    let issuer = issuer.map_err(|problem| format!("issuer_pem: {problem}"))?;
    Ok((url, issuer))
}

/// The first listener decides about an option for all of them.
fn common(setting: &Setting<'_>, to: &str, setup: &mut Setup) {
    if !setting.exists() {
        return;
    }
    let Some(value) = setting.text().and_then(|text| convert(text, Form::Duration)) else {
        return setting.refuse(&format!("its value has no counterpart in {to}"));
    };
    match setup.has(to) {
        false => {
            setup.set(to, &setting.path, value);
            setting.imported(to);
        }
        true if setup.is(to, &value) => {
            setup.add_item(to, &setting.path);
            setting.imported(to);
        }
        true => setting.changed(to, "all listeners have the value of the first one"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::listeners;
    use super::super::providers::Providers;
    use super::*;
    use crate::import::hocon::Hocon;
    use crate::import::report::Report;

    const FILES: &str = r#"certfile = "-----BEGIN C", keyfile = "-----BEGIN K""#;
    const ISSUER: &str = r#"issuer_pem = "-----BEGIN I""#;

    /// Imports the listeners `a` and `b` with their settings of `ocsp`.
    fn import_listeners(a: &str, b: &str) -> (Setup, String) {
        let text = format!(
            "listeners.ssl.a {{bind = 1999, ssl_options {{{FILES}, ocsp {{{a}}}}}}}\n\
             listeners.wss.b {{bind = 2999, ssl_options {{{FILES}, ocsp {{{b}}}}}}}"
        );
        let hocon = Hocon::parse("cluster.hocon", &text, &|_| Err(String::new())).expect("valid");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let root = Setting::root(&hocon, &report);
        listeners(&root.get("listeners"), &mut Providers::new(5), &mut setup);
        root.finish();
        let report = report.text("title");
        for key in ["listeners.tls.a.bind", "listeners.wss.b.bind"] {
            assert!(setup.has(key), "{key}\n{report}");
        }
        (setup, report)
    }

    #[test]
    fn stapling_of_a_listener_is_imported() {
        let url = "responder_url = \"http://127.0.0.1:9877/\"";
        let one = format!("enable_ocsp_stapling = true, {url}, {ISSUER}, refresh_interval = 10m");
        let two = format!("{one}, refresh_http_timeout = 20s");
        let (setup, report) = import_listeners(&one, &two);
        for key in ["listeners.tls.a", "listeners.wss.b"] {
            assert!(setup.has(&format!("{key}.ocsp_stapling")), "{report}");
            let option = |option: &str| setup.option(&format!("{key}.{option}"));
            assert_eq!(option("ocsp_responder_url"), Some("http://127.0.0.1:9877/"));
            let file = option("ocsp_issuer_file").expect("the issuer is imported");
            assert!(
                file.ends_with(&format!("tls/{}-issuer.pem", key.replace('.', "-"))),
                "{file}"
            );
        }
        assert_eq!(setup.option("tls.ocsp.refresh_interval"), Some("10m"));
        assert_eq!(setup.option("tls.ocsp.timeout"), Some("20s"));
        assert!(report.contains(", 0 not supported"), "{report}");
    }

    #[test]
    fn interval_of_the_first_listener_counts() {
        let (setup, report) = import_listeners(
            "enable_ocsp_stapling = true, refresh_interval = 10m",
            "enable_ocsp_stapling = true, refresh_interval = 20m, refresh_http_timeout = soon",
        );
        assert_eq!(setup.option("tls.ocsp.refresh_interval"), Some("10m"));
        assert!(!setup.has("tls.ocsp.timeout"));
        for part in [
            "all listeners have the value of the first one",
            "its value has no counterpart in tls.ocsp.timeout",
        ] {
            assert!(report.contains(part), "{part}\n{report}");
        }
    }

    #[test]
    fn unusable_stapling_leaves_the_listener() {
        for (ocsp, because) in [
            ("enable_ocsp_stapling = maybe", "neither true nor false"),
            (
                "enable_ocsp_stapling = false, refresh_interval = 10m",
                "OCSP stapling is off",
            ),
            (
                "enable_ocsp_stapling = true, responder_url = \"ldap://ca.example/\"",
                "responder_url: found",
            ),
            (
                "enable_ocsp_stapling = true, refresh_interval = 10m, issuer_pem = \"/missing/issuer.pem\"",
                "issuer_pem: the archive contains only the name of the file",
            ),
        ] {
            let (setup, report) = import_listeners(ocsp, "enable_ocsp_stapling = false");
            assert!(report.contains(because), "{because}\n{report}");
            for key in ["listeners.tls.a.ocsp_stapling", "tls.ocsp.refresh_interval"] {
                assert!(!setup.has(key), "{ocsp}\n{report}");
            }
        }
    }
}
