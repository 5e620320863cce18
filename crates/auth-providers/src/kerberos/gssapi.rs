//! The functions of GSSAPI that a server needs [RFC 2744], with the library of MIT Kerberos.
//!
//! Each value of the library has a type here that releases it on drop. Calls may block: they read the keytab, and they
//! write the replay cache. The library keeps the text of an error per thread, so an error reads its text at once.

// The library has a C interface.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::ptr;
use std::slice;

/// Bits of a status that are errors of the call or of the mechanism.
const ERROR_MASK: u32 = 0xFFFF_0000;
/// Bits of a status without an error.
const CONTINUE_NEEDED: u32 = 1;
const DUPLICATE_TOKEN: u32 = 1 << 1;
const OLD_TOKEN: u32 = 1 << 2;

/// Routine errors of a status.
pub const BAD_MECH: u32 = 1;
pub const BAD_MIC: u32 = 6;
pub const NO_CRED: u32 = 7;
pub const DEFECTIVE_TOKEN: u32 = 9;
pub const CREDENTIALS_EXPIRED: u32 = 11;
pub const FAILURE: u32 = 13;

const ACCEPT: c_int = 2;
const ANONYMOUS_FLAG: u32 = 64;
const INDEFINITE: u32 = u32::MAX;

/// Kinds of codes for `gss_display_status`.
const GSS_CODE: c_int = 1;
const MECH_CODE: c_int = 2;
/// Maximum number of texts of a code.
const TEXTS_MAX: usize = 8;
/// Maximum number of characters of an error.
const ERROR_CHARACTERS_MAX: usize = 500;
/// Text of the code 0.
const NO_ERROR_TEXT: &str = "Success";

/// 1.2.840.113554.1.2.2: Kerberos 5.
static KRB5_BYTES: [u8; 9] = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x12, 0x01, 0x02, 0x02];
static KRB5: Oid = Oid {
    length: 9,
    elements: KRB5_BYTES.as_ptr().cast(),
};
/// 1.2.840.113554.1.2.2.1: the text form of a principal.
static PRINCIPAL_NAME_BYTES: [u8; 10] = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x12, 0x01, 0x02, 0x02, 0x01];
static PRINCIPAL_NAME: Oid = Oid {
    length: 10,
    elements: PRINCIPAL_NAME_BYTES.as_ptr().cast(),
};
/// Without SPNEGO, which would hide the mechanism in a further negotiation.
static MECHANISMS: OidSet = OidSet {
    count: 1,
    elements: &KRB5,
};

/// `gss_OID_desc`
#[repr(C)]
struct Oid {
    length: u32,
    elements: *const c_void,
}

// SAFETY: it points to bytes that never change.
unsafe impl Sync for Oid {}

/// `gss_OID_set_desc`
#[repr(C)]
struct OidSet {
    count: usize,
    elements: *const Oid,
}

// SAFETY: it points to an object identifier that never changes.
unsafe impl Sync for OidSet {}

/// `gss_buffer_desc`
#[repr(C)]
struct RawBuffer {
    length: usize,
    value: *mut c_void,
}

/// `gss_key_value_element_desc`
#[repr(C)]
struct KeyValue {
    key: *const c_char,
    value: *const c_char,
}

/// `gss_key_value_set_desc`
#[repr(C)]
struct KeyValueSet {
    count: u32,
    elements: *const KeyValue,
}

/// Opaque types of the library.
#[repr(C)]
struct RawName {
    _private: [u8; 0],
}
#[repr(C)]
struct RawCredential {
    _private: [u8; 0],
}
#[repr(C)]
struct RawContext {
    _private: [u8; 0],
}

// SAFETY: the declarations are those of gssapi.h and gssapi_ext.h. `const` marks what the library only reads.
#[link(name = "gssapi_krb5")]
unsafe extern "C" {
    fn gss_import_name(minor: *mut u32, text: *const RawBuffer, kind: *const Oid, name: *mut *mut RawName) -> u32;
    fn gss_display_name(minor: *mut u32, name: *const RawName, text: *mut RawBuffer, kind: *mut *const Oid) -> u32;
    fn gss_release_name(minor: *mut u32, name: *mut *mut RawName) -> u32;
    fn gss_acquire_cred_from(
        minor: *mut u32,
        name: *const RawName,
        lifetime_s: u32,
        mechanisms: *const OidSet,
        usage: c_int,
        store: *const KeyValueSet,
        credential: *mut *mut RawCredential,
        actual_mechanisms: *mut *mut OidSet,
        actual_lifetime_s: *mut u32,
    ) -> u32;
    fn gss_release_cred(minor: *mut u32, credential: *mut *mut RawCredential) -> u32;
    fn gss_accept_sec_context(
        minor: *mut u32,
        context: *mut *mut RawContext,
        credential: *const RawCredential,
        token: *const RawBuffer,
        channel_bindings: *const c_void,
        client: *mut *mut RawName,
        mechanism: *mut *const Oid,
        answer: *mut RawBuffer,
        flags: *mut u32,
        lifetime_s: *mut u32,
        delegated: *mut *mut RawCredential,
    ) -> u32;
    fn gss_delete_sec_context(minor: *mut u32, context: *mut *mut RawContext, token: *mut RawBuffer) -> u32;
    fn gss_wrap(
        minor: *mut u32,
        context: *const RawContext,
        is_encrypted: c_int,
        quality: u32,
        message: *const RawBuffer,
        was_encrypted: *mut c_int,
        wrapped: *mut RawBuffer,
    ) -> u32;
    fn gss_unwrap(
        minor: *mut u32,
        context: *const RawContext,
        wrapped: *const RawBuffer,
        message: *mut RawBuffer,
        was_encrypted: *mut c_int,
        quality: *mut u32,
    ) -> u32;
    fn gss_display_status(
        minor: *mut u32,
        code: u32,
        kind: c_int,
        mechanism: *const Oid,
        position: *mut u32,
        text: *mut RawBuffer,
    ) -> u32;
    fn gss_release_buffer(minor: *mut u32, buffer: *mut RawBuffer) -> u32;
}

/// A call that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GssError {
    pub major: u32,
    /// Code of Kerberos or of the system. 0: none.
    pub minor: u32,
    pub(super) text: String,
}

impl GssError {
    /// Must be called on the thread of the failed call, before another call.
    fn of(major: u32, minor: u32) -> GssError {
        // The text of Kerberos comes first, because another call may replace it.
        let mut kerberos = texts(minor, MECH_CODE);
        // The library replaces a zero of Kerberos by another number.
        let has_code = minor != 0 && kerberos.first().is_some_and(|text| text != NO_ERROR_TEXT);
        if !has_code {
            kerberos.clear();
        }
        kerberos.extend(texts(major & ERROR_MASK, GSS_CODE));
        GssError {
            major,
            minor: if has_code { minor } else { 0 },
            text: readable(&kerberos.join("; ")),
        }
    }

    /// Returns the error of the mechanism, such as [`DEFECTIVE_TOKEN`].
    pub fn routine_error(&self) -> u32 {
        (self.major >> 16) & 0xFF
    }

    /// Returns whether the token was used before.
    pub fn is_duplicate(&self) -> bool {
        self.major & ERROR_MASK == 0 && self.major & (DUPLICATE_TOKEN | OLD_TOKEN) != 0
    }
}

impl fmt::Display for GssError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for GssError {}

/// Returns a text for the log. It may contain names from the token of a client, which are long or change a terminal.
pub(super) fn readable(text: &str) -> String {
    let characters = text.chars().take(ERROR_CHARACTERS_MAX);
    let clear = characters.map(|character| match character.is_control() {
        true => char::REPLACEMENT_CHARACTER,
        false => character,
    });
    clear.collect()
}

fn texts(code: u32, kind: c_int) -> Vec<String> {
    let (mut texts, mut position) = (Vec::new(), 0);
    for _ in 0..TEXTS_MAX {
        let (mut minor, mut text) = (0, LibraryBuffer::empty());
        // SAFETY: all pointers are valid for the call, and `text` is empty.
        let major = unsafe { gss_display_status(&mut minor, code, kind, &KRB5, &mut position, &mut text.0) };
        if major & ERROR_MASK != 0 {
            break;
        }
        texts.push(String::from_utf8_lossy(text.bytes()).into_owned());
        if position == 0 {
            break;
        }
    }
    texts
}

fn check(major: u32, minor: u32) -> Result<(), GssError> {
    match major & ERROR_MASK {
        0 => Ok(()),
        _ => Err(GssError::of(major, minor)),
    }
}

/// Returns a buffer that the library only reads. It must not outlive `bytes`.
fn input(bytes: &[u8]) -> RawBuffer {
    RawBuffer {
        length: bytes.len(),
        value: bytes.as_ptr().cast_mut().cast(),
    }
}

/// Memory of the library.
struct LibraryBuffer(RawBuffer);

impl LibraryBuffer {
    fn empty() -> LibraryBuffer {
        LibraryBuffer(RawBuffer {
            length: 0,
            value: ptr::null_mut(),
        })
    }

    fn bytes(&self) -> &[u8] {
        if self.0.value.is_null() || self.0.length == 0 {
            return &[];
        }
        // SAFETY: the library has allocated and written this number of bytes. They are released on drop.
        unsafe { slice::from_raw_parts(self.0.value.cast::<u8>().cast_const(), self.0.length) }
    }
}

impl Drop for LibraryBuffer {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the buffer is empty or has memory of the library. The call accepts both.
        unsafe { gss_release_buffer(&mut minor, &mut self.0) };
    }
}

struct Name(*mut RawName);

impl Name {
    fn empty() -> Name {
        Name(ptr::null_mut())
    }

    fn of_principal(principal: &str) -> Result<Name, GssError> {
        let (mut minor, mut name) = (0, Name::empty());
        let text = input(principal.as_bytes());
        // SAFETY: all pointers are valid for the call, which copies the text.
        let major = unsafe { gss_import_name(&mut minor, &text, &PRINCIPAL_NAME, &mut name.0) };
        check(major, minor)?;
        Ok(name)
    }

    /// Returns the name as text. Fails only if the library does. Bytes that are not UTF-8 are replaced by U+FFFD.
    fn text(&self) -> Result<String, GssError> {
        let (mut minor, mut text) = (0, LibraryBuffer::empty());
        // SAFETY: the name is valid or null, which the call rejects. `text` is empty.
        let major = unsafe { gss_display_name(&mut minor, self.0, &mut text.0, ptr::null_mut()) };
        check(major, minor)?;
        Ok(String::from_utf8_lossy(text.bytes()).into_owned())
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if !self.0.is_null() {
            let mut minor = 0;
            // SAFETY: the name belongs to this value.
            unsafe { gss_release_name(&mut minor, &mut self.0) };
        }
    }
}

/// The right to accept clients for a principal, with the key of a keytab. The library reads the keytab again for each
/// client.
pub struct Credential(*mut RawCredential);

// SAFETY: the library locks credentials, and does not tie them to a thread.
unsafe impl Send for Credential {}
// SAFETY: the same.
unsafe impl Sync for Credential {}

impl Credential {
    /// Fails if the keytab has no key of the principal. `keytab`: for example `FILE:/etc/krb5.keytab`. `None`: that of
    /// the library. May block.
    pub fn acquire(principal: &str, keytab: Option<&CStr>) -> Result<Credential, GssError> {
        let name = Name::of_principal(principal)?;
        let element = KeyValue {
            key: c"keytab".as_ptr(),
            value: keytab.map_or(ptr::null(), CStr::as_ptr),
        };
        let elements = KeyValueSet {
            count: 1,
            elements: &element,
        };
        let store: *const KeyValueSet = match keytab {
            Some(_) => &elements,
            None => ptr::null(),
        };
        let (mut minor, mut credential) = (0, Credential(ptr::null_mut()));
        // SAFETY: all pointers are valid for the call or null where that is allowed. The library copies the elements.
        let major = unsafe {
            gss_acquire_cred_from(
                &mut minor,
                name.0,
                INDEFINITE,
                &MECHANISMS,
                ACCEPT,
                store,
                &mut credential.0,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        check(major, minor)?;
        Ok(credential)
    }
}

impl Drop for Credential {
    fn drop(&mut self) {
        if !self.0.is_null() {
            let mut minor = 0;
            // SAFETY: the credential belongs to this value.
            unsafe { gss_release_cred(&mut minor, &mut self.0) };
        }
    }
}

/// The server's side of a security context. Its drop only frees memory.
pub struct Context(*mut RawContext);

// SAFETY: the library does not tie a context to a thread. The calls take `&mut self`, so they do not overlap.
unsafe impl Send for Context {}

/// Answer to a token of a client.
pub struct Accepted {
    /// Token for the client; may be empty.
    pub token: Vec<u8>,
    /// `None`: the library needs a further token of the client.
    pub client: Option<ContextClient>,
}

/// The authenticated client of a context.
pub struct ContextClient {
    /// The principal, for example `meter-1@EXAMPLE.COM`.
    pub principal: String,
    pub is_anonymous: bool,
    /// Remaining life time of its ticket. `None`: unlimited.
    pub lifetime_s: Option<u32>,
}

impl Context {
    pub fn new() -> Context {
        Context(ptr::null_mut())
    }

    /// Reads a token of the client. May block. After an error the context must not be used.
    pub fn accept(&mut self, credential: &Credential, token: &[u8]) -> Result<Accepted, GssError> {
        let token = input(token);
        let (mut minor, mut client, mut answer) = (0, Name::empty(), LibraryBuffer::empty());
        let (mut flags, mut lifetime_s) = (0, 0);
        // SAFETY: all pointers are valid for the call or null where that is allowed. The context is null or was created
        // by an earlier call; name and answer are empty.
        let major = unsafe {
            gss_accept_sec_context(
                &mut minor,
                &mut self.0,
                credential.0,
                &token,
                ptr::null(),
                &mut client.0,
                ptr::null_mut(),
                &mut answer.0,
                &mut flags,
                &mut lifetime_s,
                ptr::null_mut(),
            )
        };
        check_without_warning(major, minor)?;
        let client = match major & CONTINUE_NEEDED {
            0 => Some(ContextClient {
                principal: client.text()?,
                is_anonymous: flags & ANONYMOUS_FLAG != 0,
                lifetime_s: (lifetime_s != INDEFINITE).then_some(lifetime_s),
            }),
            _ => None,
        };
        Ok(Accepted {
            token: answer.bytes().to_vec(),
            client,
        })
    }

    /// Signs a message for the client, without encryption.
    pub fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, GssError> {
        let message = input(message);
        let (mut minor, mut wrapped) = (0, LibraryBuffer::empty());
        // SAFETY: all pointers are valid for the call or null where that is allowed.
        let major = unsafe { gss_wrap(&mut minor, self.0, 0, 0, &message, ptr::null_mut(), &mut wrapped.0) };
        check(major, minor)?;
        Ok(wrapped.bytes().to_vec())
    }

    /// Verifies a message of the client, and returns it without its signature.
    pub fn unwrap_message(&mut self, wrapped: &[u8]) -> Result<Vec<u8>, GssError> {
        let wrapped = input(wrapped);
        let (mut minor, mut message) = (0, LibraryBuffer::empty());
        // SAFETY: all pointers are valid for the call or null where that is allowed.
        let major = unsafe {
            gss_unwrap(
                &mut minor,
                self.0,
                &wrapped,
                &mut message.0,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        check_without_warning(major, minor)?;
        Ok(message.bytes().to_vec())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.0.is_null() {
            let mut minor = 0;
            // SAFETY: the context belongs to this value.
            unsafe { gss_delete_sec_context(&mut minor, &mut self.0, ptr::null_mut()) };
        }
    }
}

/// Like `check`, and rejects a token that was used before.
fn check_without_warning(major: u32, minor: u32) -> Result<(), GssError> {
    check(major, minor)?;
    match major & (DUPLICATE_TOKEN | OLD_TOKEN) {
        0 => Ok(()),
        _ => Err(GssError {
            major,
            minor,
            text: "the token was used before".to_owned(),
        }),
    }
}
