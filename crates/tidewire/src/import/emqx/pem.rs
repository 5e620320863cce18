//! Certificates and keys in a configuration of EMQX: their text, or the name of a file.

/// Returns the text of a certificate or key. A file name is read on this machine.
pub fn pem(text: &str) -> Result<Vec<u8>, String> {
    if text.contains("-----BEGIN ") {
        return Ok(text.as_bytes().to_vec());
    }
    let place = match is_file_name(text) {
        true => format!("file {text}"),
        // It may be the text of a key.
        false => "such file".to_owned(),
    };
    crate::import::read_bounded(std::path::Path::new(text), 1 << 20)
        .map_err(|_| format!("the archive contains only the name of the file, and this machine has no {place}"))
}

/// Whether a text can be the name of a file, and not a key in Base64 or hexadecimal form. These have no dot.
fn is_file_name(text: &str) -> bool {
    const NAME_BYTES_MAX: usize = 255;
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/._-${}~@".contains(c);
    text.len() <= NAME_BYTES_MAX && text.contains('.') && text.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_text_is_not_echoed() {
        for key in [
            "MC4CAQAwBQYDK2VwBCIEIHVzaHVzaHVzaHVzaHVzaHVzaHVzaHVzaHVzaHVz",
            "/MC4CAQAwBQYDK2VwBCIEIHVzaHVzaHVzaHVzaHVzaHVzaHVzaHVzaHVzaHVz",
            "302e020100300506032b657004220420",
            "MC4CAQAwBQYDK2VwBCIEIHVz\naHVzaHVzaHVzaHVzaHVzaHVz\n-----END PRIVATE KEY-----",
            r#"{"kty":"OKP","crv":"Ed25519","d":"aHVzaHVzaHVz.x"}"#,
        ] {
            let error = pem(key).unwrap_err();
            assert!(error.contains("this machine has no such file"), "{error}");
            assert!(
                !error.contains("aHVza") && !error.contains("302e02") && !error.contains("MC4C"),
                "{error}"
            );
        }
        let error = pem("${EMQX_ETC_DIR}/certs/key.pem").unwrap_err();
        assert!(
            error.contains("this machine has no file ${EMQX_ETC_DIR}/certs/key.pem"),
            "{error}"
        );
    }
}
