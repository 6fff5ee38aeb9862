#pragma once

// Declares nothing: see gloo/context.h.
