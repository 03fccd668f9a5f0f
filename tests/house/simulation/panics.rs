//! Counts the panics of this thread's tasks, which the agent survives: each is a defect all the same.

use std::cell::Cell;
use std::panic;
use std::sync::Once;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Counts from zero.
pub(super) fn begin() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            COUNT.set(COUNT.get() + 1);
            before(info);
        }));
    });
    COUNT.set(0);
}

/// The panics since then.
pub(super) fn count() -> usize {
    COUNT.get()
}
